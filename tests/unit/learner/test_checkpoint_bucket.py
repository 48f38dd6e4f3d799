"""Checkpoints in buckets, against a real server: whole or absent, whatever happens to client or network."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from forebay.clock import ManualClock, SystemClock
from forebay.errors import BucketError, CheckpointError, ConfigError
from forebay.learner.bucket_client import BLOCK_BYTES, BucketClient
from forebay.learner.checkpoint import Checkpointer, Restored, load_best, load_step
from forebay.learner.checkpoint_bucket import BucketShelf
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.checkpoint_places import check_place, open_shelf
from forebay.learner.gang.gang import Gang
from forebay.learner.settings import LearnerSettings
from forebay.trajectory import PolicyVersion
from tests import bucket_server
from tests.bucket_server import Gate, TestBucket, make_bucket, needs_buckets
from tests.unit.learner.gang.gangs import Threads

pytestmark = needs_buckets


def cursor_of(step: int, incarnation: int = 0) -> CheckpointCursor:
    return CheckpointCursor(run_id="run", version=PolicyVersion(incarnation, step))


def state_of(step: int, size: int = 100) -> dict[str, np.ndarray]:
    noise = np.random.default_rng(step).standard_normal(size).astype(np.float32)
    return {"w": noise, "step": np.int32(step), "none": np.zeros((0, 2), np.float32)}


def bits_of(state: dict[str, np.ndarray]) -> dict[str, bytes]:
    return {name: array.tobytes() for name, array in state.items()}


def client_of(bucket: TestBucket, patience_s: float = 0.0, clock: Any = None) -> BucketClient:
    return BucketClient(f"{bucket.url}/run", patience_s=patience_s, retry_s=0.1, clock=clock or SystemClock())


def names_in(client: BucketClient) -> list[str]:
    """Return the objects, without the hash in the names of folders."""
    return sorted("-".join((*name.split("-")[:2], name.split("/")[-1])) for name in client.list())


@pytest.fixture(params=["s3", "gs"])
def client(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> BucketClient:
    return client_of(make_bucket(request.param).use(monkeypatch))


@pytest.fixture
def gate() -> Iterator[Gate]:
    with Gate(bucket_server.shared_server()) as gate:
        yield gate


def test_a_state_of_several_parts_comes_back_bit_for_bit(client: BucketClient) -> None:
    state = state_of(5, size=BLOCK_BYTES // 4 + 1000)
    checkpointer = Checkpointer(BucketShelf(client))
    assert checkpointer.restore_newest(state) is None
    checkpointer.save(state, cursor_of(5, incarnation=2))
    restored = checkpointer.restore_newest(state)
    assert restored is not None
    assert (bits_of(restored.state), restored.cursor) == (bits_of(state), cursor_of(5, incarnation=2))
    assert names_in(client) == ["step_5-2-manifest.json", "step_5-2-state.safetensors"]
    assert bits_of(load_step(BucketShelf(client), 5, {"w": state["w"]}, part=True).state) == {
        "w": state["w"].tobytes()
    }


def test_retention_keeps_the_newest_and_the_best_and_nothing_is_copied(client: BucketClient) -> None:
    shelf, saved = BucketShelf(client), []
    checkpointer = Checkpointer(shelf, background=True, on_saved=lambda step, report: saved.append(step))
    for step, metric in [(10, 0.5), (20, 0.9), (30, 0.4), (40, 0.6)]:
        checkpointer.save(state_of(step), cursor_of(step), metric=metric)
    checkpointer.close()
    assert names_in(client) == [
        "step_20-0-best.json",
        "step_20-0-state.safetensors",
        "step_30-0-manifest.json",
        "step_30-0-state.safetensors",
        "step_40-0-manifest.json",
        "step_40-0-state.safetensors",
    ]
    assert saved == [10, 20, 30, 40]
    assert (checkpointer.oldest_verified_step(), list(shelf.folders(best=True))) == (30, [20])
    assert bits_of(load_best(shelf, state_of(0)).state) == bits_of(state_of(20))
    assert bits_of(load_step(shelf, 20, state_of(0)).state) == bits_of(state_of(20))
    checkpointer = Checkpointer(shelf)
    checkpointer.save(state_of(50), cursor_of(50), metric=0.95)
    assert list(shelf.folders(best=True)) == []


def test_the_same_arrays_renew_the_manifest_and_others_replace_the_checkpoint(client: BucketClient) -> None:
    checkpointer = Checkpointer(BucketShelf(client))
    checkpointer.save(state_of(1), cursor_of(1))
    checkpointer.save(state_of(1), cursor_of(1, incarnation=1), metric=0.5)
    assert names_in(client) == ["step_1-0-manifest.json", "step_1-0-state.safetensors"]
    assert load_best(BucketShelf(client), state_of(0)).cursor.version == (1, 1)
    checkpointer.save(state_of(9), cursor_of(1, incarnation=2))
    assert names_in(client) == ["step_1-2-manifest.json", "step_1-2-state.safetensors"]
    restored = checkpointer.restore_newest(state_of(0))
    assert restored is not None
    assert bits_of(restored.state) == bits_of(state_of(9))


def test_a_life_thought_dead_replaces_nothing_of_a_newer_one(client: BucketClient) -> None:
    alive, thought_dead = Checkpointer(BucketShelf(client)), Checkpointer(BucketShelf(client))
    alive.save(state_of(1), cursor_of(1, incarnation=1))
    thought_dead.save(state_of(9), cursor_of(1))
    restored = Checkpointer(BucketShelf(client)).restore_newest(state_of(0))
    assert restored is not None
    assert (bits_of(restored.state), restored.cursor) == (bits_of(state_of(1)), cursor_of(1, incarnation=1))
    for step in (2, 3, 4, 5):
        alive.save(state_of(step), cursor_of(step, incarnation=1))
    assert {name.split("-")[0] for name in client.list()} == {"step_4", "step_5"}


def test_an_upload_that_stood_still_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """moto never gives up on an upload; S3 does, with a status that else means a refusal."""
    answers = [
        (
            400,
            b"<Error><Code>RequestTimeout</Code><Message>It stood still</Message></Error>",
        ),
        (200, b""),
    ]

    class Server(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            status, body = answers.pop(0)
            self.send_response(status)
            for name, value in (("ETag", '"1"'), ("Content-Length", str(len(body)))):
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            return

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server, ThreadPoolExecutor(1) as executor:
        executor.submit(server.serve_forever)
        bucket = TestBucket("s3://bucket/runs", bucket_server.environment_of("s3", server.server_port))
        try:
            client_of(bucket.use(monkeypatch), patience_s=60.0, clock=ManualClock()).put_small("x", b"data")
        finally:
            server.shutdown()
    assert answers == []


def test_c57_what_is_damaged_is_named_and_the_newest_whole_one_restored(
    client: BucketClient, caplog: pytest.LogCaptureFixture
) -> None:
    checkpointer = Checkpointer(BucketShelf(client), keep=5)
    for step in (100, 200, 300, 400, 500):
        checkpointer.save(state_of(step), cursor_of(step))
    folders = BucketShelf(client).folders()
    at = {step: f"{folders[step].name}/state.safetensors" for step in folders}
    data = client.get(at[200])
    client.put_small(at[200], data[: len(data) // 2])
    client.put_small(at[300], data[:-1] + bytes([data[-1] ^ 1]))
    client.delete([at[400]])
    client.put_small(f"{folders[500].name}/weights.pkl", b"cos\nsystem\n(S'touch canary'\ntR.")
    client.put_small("step_600-0-0123456789ab/state.safetensors", data)
    with caplog.at_level(logging.WARNING):
        resumed = Checkpointer(BucketShelf(client), keep=5)
        restored = resumed.restore_newest(state_of(0))
    assert restored is not None
    assert (bits_of(restored.state), restored.cursor.version) == (bits_of(state_of(100)), (0, 100))
    assert [text.partition(": ")[2].split(" (")[0].split("/")[-1] for text in restored.skipped] == [
        f"{folders[500].name} has a missing or an extra file",
        f"{folders[400].name} has a missing or an extra file",
        "state.safetensors is damaged",
        "state.safetensors is damaged",
    ]
    assert "step_600-0-0123456789ab, which was not finished" in caplog.text
    assert not any(name.startswith("step_600") for name in client.list())
    assert resumed.oldest_verified_step() == 100


def test_two_processes_write_a_file_each_and_read_a_half_each(client: BucketClient) -> None:
    def work(gang: Gang) -> Restored | None:
        checkpointer = Checkpointer(BucketShelf(client), peers=gang)
        checkpointer.save(state_of(7), cursor_of(7))
        return checkpointer.restore_newest(state_of(0))

    with Threads(2) as threads, ThreadPoolExecutor(2) as executor:
        restored = [future.result(60.0) for future in [executor.submit(work, gang) for gang in threads.gangs]]
    assert [one and bits_of(one.state) for one in restored] == 2 * [bits_of(state_of(7))]
    assert names_in(client) == [
        "step_7-0-manifest.json",
        "step_7-0-state-00001-of-00002.safetensors",
        "step_7-0-state-00002-of-00002.safetensors",
    ]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_that_cannot_be_reached_holds_the_loop_and_loses_nothing(
    scheme: str, gate: Gate, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    bucket, saved = make_bucket(scheme, gate.port).use(monkeypatch), []

    class Opening(SystemClock):
        """Opens the gate while the client waits for the second time."""

        naps = 0

        def sleep(self, duration_s: float) -> None:
            assert saved == [1]
            self.naps += 1
            if self.naps == 2:
                gate.open()

    shelf = BucketShelf(client_of(bucket, patience_s=600.0, clock=Opening()))
    checkpointer = Checkpointer(
        shelf, background=True, on_saved=lambda step, report: saved.append(step), timeout_s=120.0
    )
    checkpointer.save(state_of(1), cursor_of(1))
    checkpointer.wait()
    gate.shut()
    with caplog.at_level(logging.WARNING):
        checkpointer.save(state_of(2), cursor_of(2))
        checkpointer.wait()
    assert saved == [1, 2]
    assert len([text for text in caplog.messages if "trying again for up to" in text]) == 2
    restored = checkpointer.restore_newest(state_of(0))
    assert restored is not None
    assert bits_of(restored.state) == bits_of(state_of(2))
    checkpointer.close()


def test_a_bucket_that_stays_away_is_an_error_and_not_an_empty_one(
    gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = make_bucket("s3", gate.port).use(monkeypatch)
    shelf = BucketShelf(client_of(bucket, patience_s=60.0, clock=ManualClock()))
    saved: list[int] = []
    checkpointer = Checkpointer(
        shelf, background=True, on_saved=lambda step, report: saved.append(step), timeout_s=120.0
    )
    checkpointer.save(state_of(1), cursor_of(1), metric=0.5)
    checkpointer.wait()
    gate.shut()
    checkpointer.save(state_of(2), cursor_of(2))
    with pytest.raises(BucketError, match=r"cannot list s3://.*/run: .*tried for .* limit 60 s.*nothing is"):
        checkpointer.wait()
    for ask in (
        lambda: checkpointer.restore_newest(state_of(0)),
        checkpointer.oldest_verified_step,
        lambda: load_best(shelf, state_of(0)),
        lambda: Checkpointer(shelf),
    ):
        with pytest.raises(BucketError, match=r"cannot list|cannot read"):
            ask()
    gate.open()
    restored = Checkpointer(shelf).restore_newest(state_of(0))
    assert restored is not None
    assert (saved, restored.cursor.version, restored.skipped) == ([1], (0, 1), ())


def test_a_write_that_is_cut_leaves_nothing_that_counts(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = make_bucket("s3", gate.port).use(monkeypatch)
    shelf = BucketShelf(client_of(bucket, patience_s=5.0, clock=ManualClock()))
    checkpointer = Checkpointer(shelf)
    checkpointer.save(state_of(1), cursor_of(1))
    put = BucketClient.put_small

    def cut_before_the_manifest(self: BucketClient, name: str, data: bytes) -> None:
        gate.shut()
        put(self, name, data)

    monkeypatch.setattr(BucketClient, "put_small", cut_before_the_manifest)
    with pytest.raises(BucketError, match=r"cannot write step_2-0-\w+/manifest.json to s3://"):
        checkpointer.save(state_of(2), cursor_of(2))
    monkeypatch.undo()
    bucket.use(monkeypatch)
    gate.open()
    assert list(shelf.folders()) == [1]
    restored = Checkpointer(shelf).restore_newest(state_of(0))
    assert restored is not None
    assert (restored.cursor.version, restored.skipped) == ((0, 1), ())
    assert list(client_of(bucket).list()) == [name for name in client_of(bucket).list() if "step_1-" in name]


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_a_bucket_that_is_not_there_is_refused_at_once(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make_bucket(scheme).use(monkeypatch)
    settings = LearnerSettings(checkpoint_path=f"{scheme}://no-such-bucket/runs")
    with pytest.raises(ConfigError, match=r"no-such-bucket/runs refuses to list \(got 404 NoSuchBucket\)"):
        check_place(settings)
    with pytest.raises(ConfigError, match="no such bucket"):
        BucketClient(f"{scheme}://no-such-bucket", patience_s=600.0).put_small("x", b"")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_missing_credentials_are_one_clear_line(scheme: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bucket = make_bucket(scheme).use(monkeypatch)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "GOOGLE_BEARER_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    # Where the account of a machine in a cloud is asked for: nobody listens there.
    nowhere = f"127.0.0.1:{Gate(0).port}"
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://{nowhere}")
    for name in ("GCE_METADATA_HOST", "GCE_METADATA_ROOT", "GCE_METADATA_IP"):
        monkeypatch.setenv(name, nowhere)
    variable = {"s3": "AWS_ACCESS_KEY_ID", "gs": "GOOGLE_APPLICATION_CREDENTIALS"}[scheme]
    with pytest.raises(ConfigError, match=f"no credentials for {bucket.url}/run. Set {variable}"):
        client_of(bucket, patience_s=600.0).check()


def test_the_package_is_named_where_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ConfigError, match=r"not installed: obstore\. .*pip install 'forebay\[bucket\]'"):
        check_place(LearnerSettings(checkpoint_path="s3://bucket/runs"))


def test_a_directory_for_checkpoints_is_looked_at_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_place(LearnerSettings(checkpoint_path=str(tmp_path / "new" / "deep")))
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(
        ConfigError, match=r"below learner\.checkpoint_path \(got Not a directory, in /.*/file\)"
    ):
        check_place(LearnerSettings(checkpoint_path=str(tmp_path / "file")))


def test_a_directory_for_checkpoints_is_the_same_from_everywhere() -> None:
    with pytest.raises(ValidationError, match=r"'runs/saved' is another place in every working directory"):
        LearnerSettings(checkpoint_path="runs/saved")
    with pytest.raises(ValidationError, match=r"'s3:/bucket/runs' names nothing"):
        LearnerSettings(checkpoint_path="s3:/bucket/runs")


def test_runs_that_share_a_place_do_not_see_one_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = make_bucket().use(monkeypatch)
    for path in (f"{bucket.url}/", str(tmp_path / "elsewhere")):
        settings = LearnerSettings(checkpoint_path=path)
        check_place(settings)
        first, second = (open_shelf(settings, tmp_path / "unused", run) for run in ("a", "b"))
        Checkpointer(first).save(state_of(1), cursor_of(1))
        assert (list(first.folders()), list(second.folders())) == ([1], [])
        assert str(first) == f"{path.rstrip('/')}/a"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["elsewhere"]
    Checkpointer(open_shelf(LearnerSettings(), tmp_path / "own", "a")).save(state_of(2), cursor_of(2))
    assert [entry.name for entry in (tmp_path / "own").iterdir()] == ["step_2"]


def test_a_manifest_that_is_too_large_is_refused_without_reading_it(client: BucketClient) -> None:
    Checkpointer(BucketShelf(client)).save(state_of(1), cursor_of(1))
    folder = BucketShelf(client).folders()[1]
    folder.sizes["manifest.json"] = 2**40
    with pytest.raises(CheckpointError, match=r"manifest of step_1-.* is too large"):
        folder.manifest()
