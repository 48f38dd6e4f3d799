from __future__ import annotations

import math
import random
from pathlib import Path

import pytest

from forebay.planner.audit import conclude, profile_of, summarize
from forebay.planner.audit_records import Call, Ending, Episode, Level
from forebay.planner.profile import Origin, Profile, check_profile, read_profile, write_profile

ORIGIN = Origin(machine="m", measured="2026-01-31T12:00:00Z", how="by hand")


def episode(
    began_s: float = 0.0, step_s: float = 1.0, *, ending: Ending = "terminated", own_s: float = 0.0
) -> Episode:
    """A reset of half a second, then two steps."""
    times_s = (began_s, began_s + 0.5, began_s + 0.5 + step_s, began_s + 0.5 + 2 * step_s)
    calls = (
        Call("reset", times_s[0], times_s[1], True),
        Call("step", times_s[1], times_s[2], True),
        Call("step", times_s[2], times_s[3], ending == "terminated", ending == "terminated"),
    )
    error = "step: ValueError" if ending == "error" else ""
    return Episode(
        began_s=began_s, ended_s=times_s[3], calls=calls, own_s=own_s, ending=ending, error=error, detail="no"
    )


def level(concurrency: int, episodes: list[Episode], window_s: float = 20.0) -> Level:
    return Level(concurrency=concurrency, window_s=window_s, episodes=tuple(episodes))


def slots(concurrency: int, step_s: float = 1.0) -> Level:
    """Episodes back to back in every slot."""
    length_s = 0.5 + 2 * step_s
    each = [episode(i * length_s, step_s) for i in range(int(20.0 / length_s) + 1)]
    return level(concurrency, each * concurrency)


def test_a_level_counts_what_ended_and_how() -> None:
    found = summarize(
        level(2, [episode(own_s=0.05), episode(step_s=3.0), episode(ending="error"), episode(ending="cut")]),
        own_call_s=0.014,
    )
    assert (found.num_episodes, found.num_errors, found.num_timeouts, found.num_cut) == (3, 1, 0, 1)
    assert found.errors == {"step: ValueError": 1}
    assert found.step_s is not None and found.episode_s is not None
    assert (found.step_s.num_samples, found.step_s.p50, found.step_s.max) == (6, 1.0, 3.0)
    assert (found.episode_s.num_samples, found.episode_s.mean) == (2, 4.5)
    assert found.between_share == pytest.approx(0.05 / (2.5 + 6.5 + 2.5 + 2.5))
    assert found.own_share == pytest.approx(12 * 0.014 / 14.0)


def test_calls_that_began_after_the_window_count_for_no_time() -> None:
    late = level(1, [episode(9.0)], window_s=10.0)
    assert late.durations_s("step") == [1.0]


def test_answers_of_failed_episodes_are_no_throughput() -> None:
    well, failed = level(1, [episode()]), level(1, [episode(ending="error")])
    assert len(well.useful_calls) == 3
    assert failed.useful_calls == []


def test_the_profile_holds_the_times_below_the_knee() -> None:
    levels = [slots(1), slots(2), slots(4), slots(8, step_s=2.2)]
    audit = conclude("e", "text", levels, own_call_s=1e-4)
    assert (audit.knee.kind, audit.knee.concurrency) == ("saturates", 4)
    found = profile_of(levels, audit.knee, ORIGIN)
    assert found is not None
    assert (found.concurrency, found.knee) == (2, 4)
    assert found.final_step_s is not None
    assert (found.step_s.max, found.final_step_s.max, found.reset_s.max) == (1.0, 1.0, 0.5)
    assert found.turns.mean == 2.0
    assert [each.concurrency for each in found.levels] == [1, 2, 4, 8]
    assert found.levels[3].step_s.max == pytest.approx(2.2)
    check_profile(Profile(environments={"e": found}), "here")


def test_a_profile_of_more_samples_than_it_keeps_can_be_read(tmp_path: Path) -> None:
    # 1,500 samples for 1,000 places, with a tail so heavy that one sample moves the mean.
    rng = random.Random(0)
    levels = [level(1, [episode(step_s=rng.paretovariate(1.1)) for _ in range(1500)])]
    found = profile_of(levels, conclude("e", "text", levels, own_call_s=0.0).knee, ORIGIN)
    assert found is not None
    write_profile(tmp_path / "p.json", Profile(environments={"e": found}))
    kept = read_profile(tmp_path / "p.json").environments["e"].step_s
    assert (kept.num_samples, len(kept.values)) == (1500, 1000)
    assert math.fsum(kept.values) / 1000 == pytest.approx(kept.mean, rel=1e-9)


def test_a_profile_without_a_complete_episode_is_none() -> None:
    levels = [level(1, [episode(ending="error"), episode(ending="cut")])]
    audit = conclude("e", "text", levels, own_call_s=0.0)
    assert profile_of(levels, audit.knee, ORIGIN) is None
    assert audit.details == {"step: ValueError": "no"}


def test_an_environment_faster_than_its_calls_has_no_knee() -> None:
    levels = [level(c, [episode()]) for c in (1, 4)]
    audit = conclude("e", "text", levels, own_call_s=0.5)
    assert audit.knee.kind == "instant"
    found = profile_of(levels, audit.knee, ORIGIN)
    assert found is not None
    assert (found.knee, found.concurrency) == (None, 4)


def test_nothing_measured_concludes_nothing() -> None:
    audit = conclude("e", "text", [], own_call_s=0.0, interrupted=True)
    assert (audit.levels, audit.turns, audit.own_share) == ((), None, 0.0)
