"""What the table of predictions is made of: settings, the figures of a run, verdicts, the page."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import msgspec
import numpy as np
import pytest

from benchmarks.prediction_study import probing
from benchmarks.prediction_study.calibration import (
    learner_part,
    tokens_of_calls,
    weights_part,
    with_tokens,
)
from benchmarks.prediction_study.comparing import (
    Figures,
    Measured,
    Prediction,
    compare,
    predict,
    predict_given_step,
    warmup_batches,
)
from benchmarks.prediction_study.environment import Waiting
from benchmarks.prediction_study.generator import WaitingDevice
from benchmarks.prediction_study.machinery import configure
from benchmarks.prediction_study.page import regimes, write_page
from benchmarks.prediction_study.profiling import with_turns
from benchmarks.prediction_study.settings import SETTINGS, WORKBENCH, Setting, Waits
from forebay.clock import ManualClock
from forebay.envs.protocol import Action, Task
from forebay.errors import PeerFailedError
from forebay.generation.slots import DecodeBatch, decode_batch
from forebay.planner.distribution import constant
from forebay.planner.profile import LearnerBucket, LearnerProfile, Traffic
from forebay.telemetry.metrics import MetricsWriter
from forebay.telemetry.trace import Tracer
from tests.unit.planner.profiles import ORIGIN, profile

SOME = Figures(busy=0.5, goodput=0.4, steps_per_h=1000.0, staleness=2.0, step_s=0.5)


def test_the_settings_are_as_various_as_they_should_be() -> None:
    """At least twelve: sync and decoupled, light and heavy tails, groups of 1, 4, 8, a limit, every rule."""
    assert len(SETTINGS) >= 12
    names = [setting.name for setting in (*SETTINGS, *WORKBENCH)]
    assert len(set(names)) == len(names)
    assert {setting.group_size for setting in SETTINGS} == {1, 4, 8}
    assert {setting.on_stale for setting in SETTINGS} == {"wait", "drop", "mask"}
    assert {setting.max_staleness > 0 for setting in SETTINGS} == {True, False}
    assert any(setting.waits.at_once for setting in SETTINGS)
    assert {setting.waits.stragglers > 0 for setting in SETTINGS} == {True, False}
    worked_on = {setting.waits for setting in WORKBENCH}
    assert not worked_on & {setting.waits for setting in SETTINGS}


@pytest.mark.parametrize("setting", [*SETTINGS, *WORKBENCH], ids=lambda setting: setting.name)
def test_run_and_simulation_are_given_the_same(setting: Setting) -> None:
    config = configure(setting, 10.0, 3)
    scenario = setting.scenario
    assert config.batching.groups * config.batching.group_size == 16
    assert config.staleness.max_staleness == scenario["max_staleness"]
    assert config.staleness.credit == scenario["credit"]
    assert config.actors.episodes_per_process == scenario["episodes_in_flight"]
    assert config.environment["waits"].episode_timeout_s == scenario["episode_timeout_s"]
    assert config.environment["waits"].kwargs["mean_s"] == setting.waits.mean_s
    assert warmup_batches(setting) > config.staleness.batches_in_flight


def test_a_prediction_of_a_known_run_is_its_arithmetic() -> None:
    """2 s a step and 3 x (0.25 + 1) s an episode, one batch at a time, all of it at once."""
    setting = Setting(name="s", about="", waits=Waits(mean_s=1.0), groups=4, group_size=2, max_staleness=0)
    found = predict(profile(), setting, "abc", "now")
    # Actors look for work at most half a second after it is there.
    assert 2.0 / 6.26 <= found.figures.busy <= 2.0 / 5.74
    assert found.figures.staleness == 0.0
    assert set(found.spread) == {"busy", "goodput", "steps_per_h", "staleness"}


def test_verdicts_are_points_versions_and_shares() -> None:
    found = msgspec.structs.replace(SOME, busy=0.551, goodput=0.36, steps_per_h=1100.0, staleness=1.4)
    verdicts = {one.figure: one for one in compare(SOME, found)}
    assert {name: one.holds for name, one in verdicts.items()} == {
        "busy": False,
        "goodput": True,
        "steps_per_h": True,
        "staleness": False,
    }
    assert verdicts["steps_per_h"].off == pytest.approx(1000 / 1100 - 1)


def test_the_page_counts_what_holds(tmp_path: Path) -> None:
    settings = list(SETTINGS[:2])
    spread = {"busy": 0.01, "goodput": 0.01, "steps_per_h": 10.0, "staleness": 0.1}
    said = [
        Prediction(setting=s.name, profile_sha256="", made="m", warmup_batches=1, figures=SOME, spread=spread)
        for s in settings
    ]
    off = msgspec.structs.replace(SOME, busy=0.2)
    write_page(tmp_path / "page.md", settings, said, [measured("a", SOME), measured("b", off)], audited(), 6)
    page = (tmp_path / "page.md").read_text()
    assert "**1 of 2 settings hold in all four figures, 7 of 8 figures do**" in page
    assert "holds in 2 of 2 settings" in page
    assert "1 of the runs are busy between 0.3 and 0.9" in page
    assert "**0.500 ±0.010, 0.200** (+30.0 points)" in page


def audited() -> LearnerProfile:
    """Return shapes of 100 and 50 slots, of 2 s and 1 s, and 0.5 s of the optimizer."""
    found = profile().learner
    assert found is not None
    buckets = tuple(
        LearnerBucket(rows=1, length=length, call_s=constant(length / 50.0)) for length in (50, 100)
    )
    return msgspec.structs.replace(found, buckets=buckets, apply_s=constant(0.5), alone=True)


def test_steps_are_read_from_runs_by_their_slots(tmp_path: Path) -> None:
    for name, trajectories in (("small", 8), ("large", 16)):
        with MetricsWriter(tmp_path / name / "metrics.jsonl", ManualClock()) as writer:
            for step, (computing_s, tokens) in enumerate(((9.0, 99), (1.0, 45), (3.0, 98)), start=1):
                times = {
                    f"time.{state}_s": 0.25 for state in ("packing", "publishing", "checkpointing", "other")
                }
                counts = {"trajectories": trajectories, "fresh_tokens": 500, "real_tokens": tokens}
                padding = {"padded_tokens": -tokens % 50, "time.computing_s": computing_s}
                writer.write(step, {**times, **counts, **padding})
    found = learner_part(audited(), [tmp_path / "small", tmp_path / "large"], 1, ORIGIN)
    assert [(one.trajectories, one.tokens, one.step_s.mean) for one in found.levels] == [
        (8, 500, 2.0),
        (16, 500, 2.0),
    ]
    assert [(one.slots, one.step_s.values) for one in found.packed] == [(50, (1.0, 1.0)), (100, (3.0, 3.0))]
    assert (found.overhead_s.mean, found.alone, found.buckets) == (1.0, False, audited().buckets)
    assert regimes(found) == "50 slots 1.500, 1.000 (2); 100 slots 2.500, 3.000 (2)"


ASKED = Traffic(num_episodes=1, **{name: constant(1.0) for name in Traffic.__struct_fields__[1:8]})


def test_tokens_are_those_of_all_calls_of_runs(tmp_path: Path) -> None:
    for name, count in (("small", 3), ("large", 8)):
        tracer = Tracer(tmp_path / name / "trace" / "generator-1.jsonl", "generator", ManualClock())
        tracer.slice("generate", 1.0, 2.0, arguments={"tokens": count})
        tracer.close()
    generator = profile().generator
    assert generator is not None
    asked = msgspec.structs.replace(generator, traffic={"tools": ASKED})
    tokens = tokens_of_calls([tmp_path / "small", tmp_path / "large"])
    found = with_tokens(asked, tokens).traffic["tools"]
    assert (found.sampled_tokens.values, found.prompt_tokens.values) == ((3.0, 8.0), (1.0,))


def test_turns_are_those_of_the_environments_audit() -> None:
    found = profile(turns=5.0)
    assert found.generator is not None
    generator = msgspec.structs.replace(found.generator, traffic={"tools": ASKED, "other": ASKED})
    whole = with_turns(msgspec.structs.replace(found, generator=generator))
    assert whole.generator is not None
    assert {name: one.turns.mean for name, one in whole.generator.traffic.items()} == {"tools": 5.0}


def test_weights_are_read_from_a_run(tmp_path: Path) -> None:
    learner = Tracer(tmp_path / "trace" / "learner-1.jsonl", "learner", ManualClock())
    generator = Tracer(tmp_path / "trace" / "generator-2.jsonl", "generator", ManualClock())
    learner.slice("train version 7", 1.0, 2.0)
    learner.slice("publishing", 2.0, 2.25)
    learner.slice("store.publish", 2.5, 2.75, arguments={"version": 7})
    generator.slice("load weights", 3.0, 3.25, arguments={"version": 7})
    learner.close()
    generator.close()
    found = weights_part(tmp_path, ORIGIN)
    assert found.publish_s is not None
    assert (found.publish_s.mean, found.first_token_s.mean) == (0.5, 1.0)


def test_a_rate_limited_environment_answers_so_many_at_a_time() -> None:
    async def play() -> int:
        busy = most = 0

        async def one(number: int) -> None:
            nonlocal busy, most
            environment = Waiting(mean_s=0.01, least_turns=2, most_turns=2, at_once=3)
            await environment.reset(Task(task_id=f"t{number}", environment="e", payload={"number": number}))
            gate = environment._gate()
            step = asyncio.ensure_future(environment.step(Action(text="a")))
            while not step.done():
                most = max(most, 3 - gate._value)
                await asyncio.sleep(0)
            assert not step.result().terminated
            assert (await environment.step(Action(text="a"))).terminated

        await asyncio.gather(*(one(number) for number in range(8)))
        return most

    assert asyncio.run(play()) == 3


def test_the_waiting_device_samples_within_what_is_asked() -> None:
    device = WaitingDevice(0.0, 4, 64, seed=1)
    batch: DecodeBatch = decode_batch([], 6, 2)
    batch.remaining[:] = (4, 4, 4, 4, 3, 0)
    batch.stops[:, 0] = 2
    ends = 0
    for _ in range(50):
        decoded = device.decode(batch)
        assert decoded.counts[5] == 0 and decoded.counts[4] <= 3
        for slot in range(5):
            sampled = decoded.tokens[: decoded.counts[slot], slot]
            assert not np.any(sampled[:-1] == 2)
            ends += int(sampled[-1] == 2)
    # 250 blocks of about 4 tokens, each of which ends its turn with probability 0.1.
    assert 50 < ends < 130


def measured(name: str, figures: Figures) -> Measured:
    return Measured(
        setting=name,
        began="b",
        batches=9,
        wall_s=1.0,
        figures=figures,
        given_step=figures,
        loss=0,
        load_before=0.5,
    )


def test_a_slower_machine_is_told_apart_from_a_wrong_simulation() -> None:
    setting = Setting(name="s", about="", waits=Waits(mean_s=1.0), groups=4, group_size=2, max_staleness=8)
    twice = msgspec.structs.replace(SOME, step_s=4.0)
    found = predict_given_step(profile(), setting, msgspec.structs.replace(SOME, step_s=2.0), twice)
    # The learner is the limit at 2 s a step, so it is at 4 s; half as many steps an hour.
    assert found.step_s == pytest.approx(4.0)
    assert found.steps_per_h == pytest.approx(900.0)
    # The bare step is as fast as before: half of what it does is useful.
    assert (found.busy, found.goodput) == (pytest.approx(1.0), pytest.approx(0.5))


def test_an_audit_without_end_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "_TIMEOUT_S", 0.05)
    audit = subprocess.Popen(["sleep", "600"], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    with pytest.raises(PeerFailedError, match=r"the audit for learner.json did not end within 0.05 s"):
        probing._ended(tmp_path / "learner.json", audit)
    assert audit.returncode == -9
