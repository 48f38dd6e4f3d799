"""Parts of an audit beside environments: what is chosen, merged, refused, and kept."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from forebay.cli.audit_child import part_batches, work
from forebay.cli.audit_choice import Files
from forebay.cli.audit_jobs import Job, LearnerFound
from forebay.cli.audit_parts import PartName
from forebay.cli.audit_rig import measurable
from forebay.cli.audit_session import Session
from forebay.cli.auditing_generator import default_requests
from forebay.cli.auditing_learner import batch_lengths
from forebay.cli.runs import own_run
from forebay.config import RunConfig
from forebay.config.run import load_config
from forebay.errors import PeerFailedError
from forebay.learner.timing import Length
from forebay.planner.distribution import sampled
from forebay.planner.profile import Profile, read_profile, write_profile
from tests.unit.cli.support import forebay
from tests.unit.generation.servers import listening, serving
from tests.unit.generation.vllm_app import FakeVllm
from tests.unit.planner.profiles import profile
from tests.unit.planner.test_audit_limits import traffic

WHOLE = profile(store=True, weights_s=0.5)
SMALL = """
[model]
hidden_size = 16
intermediate_size = 16
num_layers = 1
num_heads = 2
num_kv_heads = 1
max_position = 128
[batching]
groups = 4
group_size = 2
max_length = 128
rows = 1
max_programs = 1
[generator]
context = 128
slots = 2
prefill_chunks = [64]
[actors]
max_turn_tokens = 8
"""


def small(tmp_path: Path, more: str = "") -> Path:
    path = tmp_path / "small.toml"
    path.write_text(f'{SMALL}{more}\n[run]\ndirectory = "{tmp_path}"\n')
    return path


@contextlib.contextmanager
def served(server: Any = None) -> Iterator[str]:
    """Serve the fake model, or another server, from a thread: a command of this process can ask it."""
    addresses: list[str] = []
    ready = threading.Event()
    loop = asyncio.new_event_loop()
    ended = asyncio.Event()

    async def serve() -> None:
        async with contextlib.AsyncExitStack() as stack:
            if server is None:
                address, _ = await stack.enter_async_context(serving())
            else:
                address = await stack.enter_async_context(listening(server))
            addresses.append(address)
            ready.set()
            await ended.wait()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    try:
        ready.wait()
        yield addresses[0]
    finally:
        loop.call_soon_threadsafe(ended.set)
        thread.join()
        loop.close()


def written(path: Path, found: Profile) -> Path:
    write_profile(path, found)
    return path


def test_a_generator_at_an_address_is_measured_with_made_up_prompts(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    sizes = ("--prompt-tokens", "6", "--answer-tokens", "4", "--seconds", "0.4")
    with served() as address:
        code, text = forebay("audit", address, "--requests", "1,3", *sizes, "--out", str(out), "--json")
    assert code == 0, text
    found = json.loads(text[text.index("{") :])
    assert found["generator"]["asked"] == "random prompts of 6 tokens for 4 tokens each"
    assert found["environments"] == [] and found["interrupted"] is False
    part = read_profile(out).generator
    assert part is not None
    assert (part.slots, [level.requests for level in part.levels], part.traffic) == (2, [1, 3], {})
    assert part.origin.how.startswith(f"forebay audit {address} ")
    assert part.levels[0].wait_s is not None and part.levels[0].num_errors == 0
    assert all(level.prefill_tokens_per_s for level in part.levels)


def test_a_vllm_server_tells_calls_alone_and_must_be_labelled(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    server = FakeVllm()
    asked = ("--requests", "1,3", "--prompt-tokens", "6", "--answer-tokens", "4", "--seconds", "0.4")
    with served(server.app()) as address:
        code, text = forebay("audit", address, *asked)
        assert code == 4 and "does not serve weights of this run yet" in text and "\n" not in text
        server.label, server.weights = "0.7", 7
        assert forebay("audit", address, *asked, "--out", str(out)).code == 0
    part = read_profile(out).generator
    assert part is not None and part.slots == 3  # as many as were tried
    assert [(level.wait_s, level.prefill_s) for level in part.levels] == [(None, None)] * 2
    assert all(level.call_s.mean > 0.0 and level.tokens_per_s > 0.0 for level in part.levels)


def test_a_generator_that_does_not_answer_ends_with_4() -> None:
    code, text = forebay("audit", "http://127.0.0.1:9", "--seconds", "1")
    assert code == 4 and "http://127.0.0.1:9" in text and "\n" not in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("http://127.0.0.1:9", "--part", "learner"), r"has no such part (got learner, limit generator)"),
        (("calculator", "--part", "store"), r"has no such part (got store, limit environment)"),
        (("calculator", "--part", "disk"), "no such part (got disk, limit environment, generator, weights,"),
        (("calculator", "--requests", "4,1"), "--requests needs ascending whole numbers"),
        ((), "nothing to measure and nothing to write"),
        (("calculator", "--merge", "none.json"), "no profile at none.json"),
    ],
)
def test_what_cannot_be_measured_is_refused_at_once(arguments: tuple[str, ...], message: str) -> None:
    code, text = forebay("audit", *arguments)
    assert code == 2 and message in text


def test_profiles_are_merged_and_a_conflict_is_refused_or_replaced(tmp_path: Path) -> None:
    first = written(tmp_path / "a.json", Profile(learner=WHOLE.learner, store=WHOLE.store))
    second = written(tmp_path / "b.json", Profile(environments=WHOLE.environments, store=WHOLE.store))
    out = tmp_path / "out.json"
    both = ("audit", "--merge", str(first), "--merge", str(second), "--out", str(out))
    code, text = forebay(*both)
    assert code == 2 and "measured already: store" in text and "--replace" in text
    assert not out.exists()
    assert forebay(*both, "--replace").code == 0
    assert read_profile(out).parts == ("environments", "learner", "store")
    # What is in the file already is not measured again by mistake.
    code, text = forebay("audit", str(small(tmp_path)), "--part", "store", "--out", str(out))
    assert code == 2 and "measured already: store" in text


class Measured:
    """A part that has measured a store, and then ends as it is told."""

    name: PartName = "store"

    def __init__(self, ending: BaseException | None) -> None:
        self._ending = ending

    def measure(self, say: Any) -> None:
        if self._ending is not None:
            raise self._ending

    def profile(self) -> Profile:
        return Profile(store=WHOLE.store)

    def show(self, console: Console) -> None:
        console.print("the store")

    def as_json(self) -> dict[str, Any]:
        return {"store": 1}


class Learned(Measured):
    """One that has measured a learner."""

    name: PartName = "learner"

    def profile(self) -> Profile:
        return Profile(learner=WHOLE.learner)


def test_ctrl_c_and_failures_keep_what_every_part_had_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    interrupted = Session(Files(tmp_path / "a.json", (), replaces=False), Profile(), json=True)
    with pytest.raises(KeyboardInterrupt):
        interrupted.run(lambda _: [Measured(None), Learned(KeyboardInterrupt())])
    assert read_profile(tmp_path / "a.json").parts == ("learner", "store")
    assert json.loads(capsys.readouterr().out)["interrupted"] is True
    failing = Session(Files(tmp_path / "b.json", (), replaces=False), Profile(), json=False)
    with pytest.raises(PeerFailedError, match="the first"):
        failing.run(
            lambda _: [Measured(PeerFailedError("the first")), Learned(PeerFailedError("the second"))]
        )
    assert read_profile(tmp_path / "b.json").parts == ("learner", "store")
    shown = capsys.readouterr()
    assert shown.out.startswith("the store\nthe store\n\nwhat limits\n- The learner takes 2.00 s a step")
    assert shown.err == "error: the second\n"


def test_loads_end_at_twice_the_slots() -> None:
    assert default_requests(16) == (1, 4, 16, 32)
    assert default_requests(1) == (1, 2)
    assert default_requests(0) == (1, 4, 16, 32, 64)


def test_a_batch_has_the_lengths_of_the_runs_episodes(tmp_path: Path) -> None:
    config = load_config(small(tmp_path))
    assert batch_lengths(config, {}) == ((64, 8),) * 8
    seen = msgspec.structs.replace(
        traffic(), episode_tokens=sampled([40.0, 400.0]), action_tokens=sampled([5.0, 9.0])
    )
    # Half of them long, cut to what a row holds; long ones sample more.
    assert sorted(batch_lengths(config, {"calculator": seen})) == [(40, 5)] * 4 + [(128, 9)] * 4
    assert batch_lengths(config, {"another": seen}) == ((64, 8),) * 8


def test_parts_of_a_batch_hold_whole_groups_and_minibatches() -> None:
    lengths = [Length(4, 2)] * 24
    assert [len(part) for part in part_batches(lengths, 3, 1)] == [24, 12, 6]
    assert [len(part) for part in part_batches(lengths, 3, 4)] == [24, 12]
    assert [len(part) for part in part_batches(lengths[:3], 3, 1)] == [3]


def test_a_token_of_the_command_line_is_sent_for_a_configuration_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = set()

    async def refusing(scope: Any, receive: Any, send: Any) -> None:
        seen.add(dict(scope["headers"]).get(b"authorization"))
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    monkeypatch.setenv("OTHER", "of the configuration")
    monkeypatch.setenv("MINE", "of the command")
    path = small(tmp_path).rename(tmp_path / "other.toml")
    path.write_text(path.read_text().replace("[generator]", '[generator]\ntoken_env = "OTHER"'))
    with served(refusing) as address:
        asked = ("audit", str(path), "--part", "generator", "--generator", address)
        assert forebay(*asked).code == 4
        assert seen == {b"Bearer of the configuration"}
        seen.clear()
        assert forebay(*asked, "--token-env", "MINE").code == 4
        assert seen == {b"Bearer of the command"}


def test_a_token_for_a_generator_that_is_started_here_is_refused(tmp_path: Path) -> None:
    code, text = forebay("audit", str(small(tmp_path)), "--part", "generator", "--token-env", "MINE")
    assert code == 2
    assert text.startswith("--token-env is for a generator at a URL, and this one is started here (got")


def test_what_belongs_to_the_real_run_is_not_touched(tmp_path: Path) -> None:
    config = load_config(small(tmp_path, f'[store]\npath = "{tmp_path / "real"}"'))
    changed = measurable(config)
    assert (changed.store.path, changed.generator.vllm, changed.batching.epochs) == (None, (), 1)
    assert changed.optimizer == config.optimizer and changed.model == config.model


def test_the_learner_is_timed_by_its_own_programs(tmp_path: Path) -> None:
    config: RunConfig = measurable(load_config(small(tmp_path)))
    directory, run = own_run(config, tmp_path / "run")
    with directory:
        job = Job(kind="learner", run=str(run.layout.path), lengths=((60, 7),) * 8)
        *_, found = work(job)
    assert isinstance(found, LearnerFound)
    assert [(level.trajectories, level.tokens) for level in found.levels] == [(2, 14), (4, 28), (8, 56)]
    assert [(one.rows, one.length) for one in found.buckets] == [(1, 128)]
    assert found.num_programs == 2 and found.apply_s is not None and found.overhead_s is not None
    assert found.full_tokens_per_s is not None and found.full_tokens_per_s > 0.0
    assert {level.step_s.num_samples for level in found.levels} == {3}


def test_no_device_is_one_clear_line() -> None:
    code = "from forebay.cli.audit_child import _device; _device()"
    environ = {"PATH": "", "JAX_PLATFORMS": "cuda"}
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environ)
    assert found.returncode == 1
    assert "ConfigError: JAX finds no device: " in found.stderr.splitlines()[-1]
    assert "Unset JAX_PLATFORMS" in found.stderr.splitlines()[-1]


def test_weights_are_not_published_to_a_generator_of_others(tmp_path: Path) -> None:
    address = ("--generator", "http://127.0.0.1:9")
    code, text = forebay("audit", str(small(tmp_path)), "--part", "weights", *address)
    assert code == 2 and "only be published to a generator that the audit starts" in text


def test_a_run_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = small(tmp_path)
    path.write_text(path.read_text().replace(f'directory = "{tmp_path}"', 'directory = "/proc/nowhere"'))
    for part in ("generator", "learner", "store"):
        code, text = forebay("audit", str(path), "--part", part, "--seconds", "1")
        assert code == 2 and "cannot write to /proc, where the" in text
