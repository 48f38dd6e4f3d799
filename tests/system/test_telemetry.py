"""A real run with everything on that tells about it: metrics are documented, sinks are read back."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from forebay.learner.samples import sample_files, version_of
from forebay.telemetry.little import QUEUES
from forebay.telemetry.metrics import read_metrics
from forebay.telemetry.residence import STAGES
from forebay.telemetry.summary import RunSummary, read_summary
from forebay.wire import decode
from tests.house.sources import ROOT
from tests.system.told import STEPS, Told
from tests.unit.telemetry import timeline

pytestmark = pytest.mark.timeout(400)


class Ended(NamedTuple):
    """The run that tests look at.

    Attributes:
        path: Its directory.
        lines: Its metrics.
        scraped: What Prometheus got last, by name.
    """

    path: Path
    lines: list[dict[str, Any]]
    scraped: dict[str, float]


@pytest.fixture(scope="module")
def ended(told: Told) -> Ended:
    return Ended(told.path, list(read_metrics(told.path / "metrics.jsonl")), told.scraped)


def documented() -> list[re.Pattern[str]]:
    """Return a pattern for each key in the tables of the reference page; capitals stand for anything."""
    page = (ROOT / "docs/reference/metrics.md").read_text()
    patterns = []
    for cell in re.findall(r"^\|([^|]*)\|", page, re.MULTILINE):
        names = re.findall(r"`([^`]+)`", cell)
        stems = [name for name in names if not name.startswith(".")]
        ends = [name for name in names if name.startswith(".")]
        # `a.p50`, `.p95` stands for a.p50 and a.p95; `a`, `b`, each with `.p50` for a.p50 and b.p50.
        whole = [*stems, *(_joined(stem, end) for stem in stems for end in ends)]
        patterns += [re.compile(_pattern(name)) for name in whole]
    return patterns


def _joined(stem: str, end: str) -> str:
    head, _, last = stem.rpartition(".")
    return head + end if re.fullmatch(r"p50", last) else stem + end


def _pattern(name: str) -> str:
    return re.sub(r"[A-Z]{2,}", r"[\\w.:-]+", re.escape(name))


def undocumented(names: set[str]) -> list[str]:
    patterns = documented()
    return sorted(name for name in names if not any(p.fullmatch(name) for p in patterns))


def test_every_metric_that_a_run_writes_is_on_the_reference_page(ended: Ended) -> None:
    assert len(ended.lines) == STEPS
    assert undocumented({name for line in ended.lines for name in line}) == []


def test_every_figure_of_an_actor_is_on_the_reference_page(ended: Ended) -> None:
    lines = list(read_metrics(ended.path / "logs" / "actor-0.jsonl"))
    assert undocumented({name for line in lines for name in line}) == []


def test_the_reference_page_is_compared_name_by_name() -> None:
    assert undocumented({"busy", "life.buffer_s", "latency.web.step_s.p95", "latency.web.step_s.p98"}) == [
        "latency.web.step_s.p98"
    ]
    assert undocumented({"wait.lunch_s", "masked.stale"}) == ["wait.lunch_s"]


def test_a_tokens_life_has_all_its_parts(ended: Ended) -> None:
    for line in ended.lines:
        life = {name: value for name, value in line.items() if name.startswith("life.")}
        assert life.keys() - {"life.retries_s"} == {
            *(f"life.{stage}_s" for stage in STAGES if stage != "retries"),
            "life.residual_s",
        }
        residual_s = life.pop("life.residual_s")
        assert all(value >= 0.0 for value in life.values())
        assert residual_s == pytest.approx(0.0, abs=0.05)  # clocks of one host


def test_lives_are_told_by_environment_and_added_up_in_the_summary(ended: Ended) -> None:
    summary = read_summary(ended.path / "summary.json", RunSummary)
    assert summary.life is not None
    (variety,) = summary.life.environments.values()
    assert variety.trajectories == summary.trained
    assert variety.tokens == sum(line["fresh_tokens"] for line in ended.lines)
    assert sum(one.share for name, one in variety.stages.items() if name != "total") == pytest.approx(1.0)
    assert {one.queue for one in summary.life.little} <= set(QUEUES)


def test_waits_by_cause_add_up_to_the_time_starved(ended: Ended) -> None:
    waits_s = sum(value for line in ended.lines for name, value in line.items() if name.startswith("wait."))
    assert waits_s == pytest.approx(sum(line["time.starved_s"] for line in ended.lines), rel=0.2, abs=1.0)


def test_sampled_trajectories_cover_the_run(ended: Ended) -> None:
    files = sample_files(ended.path / "samples")
    assert sorted({version_of(path) for path in files}) == [1, 3, 5]
    trajectories = [decode(path.read_bytes()) for path in files]
    assert all(trajectory.num_action_tokens for trajectory in trajectories)
    assert len({trajectory.trajectory_id for trajectory in trajectories}) == len(files) == 6


def test_one_timeline_follows_trajectories_through_every_process(ended: Ended) -> None:
    target = ended.path.parent / "trace.json"
    command = [sys.executable, "-m", "forebay", "trace", str(ended.path), "--to", str(target)]
    said = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    found = timeline.read(target.read_bytes())
    assert f"{len(found.paths)} trajectories followed" in said
    processes = {process.split(" (")[0] for process, _ in found.slices}
    assert processes == {"learner", "generator", "actor-0"}
    whole = [path for path in found.paths.values() if path[-1][2].startswith("train version")]
    assert whole
    for path in whole:
        steps = [name for _, _, name in path]
        order = ["store.dispatch", "claim", "reset", "generate", "environment", "put", "store.take", "pack"]
        assert [steps.index(name) for name in order] == sorted(steps.index(name) for name in order)
        assert [process for process, track, _ in path if track.startswith("request")], path
    names = {name for slices in found.slices.values() for name, *_ in slices}
    assert names >= {
        "starved", "computing", "write weights", "store.publish", "store.record", "decode", "prefill",
        "load weights", "waits for requests", "checkpointing",
    }  # fmt: skip


def test_tensorboard_shows_what_the_file_says(ended: Ended) -> None:
    pytest.importorskip("tensorboardX")
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    accumulator = accumulators.EventAccumulator(str(ended.path / "tensorboard"))
    accumulator.Reload()
    events = accumulator.Scalars("life/buffer_s")
    assert [event.step for event in events] == [line["step"] for line in ended.lines]
    assert [event.value for event in events] == pytest.approx([line["life.buffer_s"] for line in ended.lines])
    assert [event.wall_time for event in events] == pytest.approx([line["time_s"] for line in ended.lines])


def test_wandb_keeps_an_offline_run_with_its_history_and_summary(ended: Ended) -> None:
    pytest.importorskip("wandb")
    (log,) = (ended.path / "wandb").glob("wandb/offline-run-*/run-*.wandb")
    history, summary = [], {}
    for record in wandb_records(log):
        if record.WhichOneof("record_type") == "history":
            items = {item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            history.append(items)
        for update in record.summary.update:
            summary[update.nested_key[0] if update.nested_key else update.key] = json.loads(update.value_json)
    assert [row["step"] for row in history] == [line["step"] for line in ended.lines]
    assert [row["grad_norm"] for row in history] == pytest.approx([line["grad_norm"] for line in ended.lines])
    assert summary["fresh_tokens"] == ended.lines[-1]["fresh_tokens"]


def wandb_records(path: Path) -> Iterator[Any]:
    """Yield the records of an offline run: a log as LevelDB writes it, behind 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, position, parts = path.read_bytes(), 7, b""
    assert data.startswith(b":W&B")
    while position + 7 <= len(data):
        left = 32768 - position % 32768
        if left < 7:
            position += left
            continue
        _, size, kind = struct.unpack("<IHB", data[position : position + 7])
        parts += data[position + 7 : position + 7 + size]
        position += 7 + size
        if kind in (1, 4):  # whole, or the last part
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record


def test_prometheus_scraped_the_newest_values(ended: Ended) -> None:
    pytest.importorskip("prometheus_client")
    assert ended.scraped
    line = next(line for line in ended.lines if line["step"] == ended.scraped["forebay_step"])
    assert ended.scraped["forebay_fresh_tokens"] == line["fresh_tokens"]
    assert ended.scraped["forebay_latency_variety_step_s_p95"] == pytest.approx(
        line["latency.variety.step_s.p95"]
    )


def test_nothing_was_lost_on_the_way(ended: Ended) -> None:
    assert not [name for line in ended.lines for name in line if name.startswith("sink.")]
