import pytest

from forebay.clock import ManualClock
from forebay.errors import ConfigError, NoProgressError
from forebay.telemetry.watchdog import Watchdog


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def watchdog(clock):
    watchdog = Watchdog(clock, limit_s=30.0)
    watchdog.register("learner", owner="learner", progress=True)
    watchdog.register("actor-0", owner="actors")
    watchdog.register("actor-1", owner="actors")
    return watchdog


def test_only_what_the_run_is_for_counts_as_progress(clock, watchdog):
    for _ in range(30):
        clock.advance(1.0)
        watchdog.beat("actor-0", "runs 8 episodes")
        watchdog.beat("actor-1", "runs 8 episodes")
        watchdog.beat("learner", "waits for groups", moved=False)
        assert watchdog.check() == ()
    clock.advance(0.5)
    with pytest.raises(NoProgressError, match=r"nothing moved \(got 30\.5 s, limit 30\.0 s\)") as caught:
        watchdog.check()
    assert "learner waits for groups (0.5 s ago)" in str(caught.value)
    assert caught.value.exit_code == 3


def test_progress_moves_the_deadline(clock, watchdog):
    for _ in range(5):
        clock.advance(29.0)
        watchdog.beat("learner", "trained a step")
        watchdog.check()


def test_a_dead_peer_is_reported_within_five_seconds_once_with_its_owner(clock, watchdog):
    watchdog.beat("actor-1", "waits for a generator")
    reported_s = []
    for second in range(1, 12):
        clock.advance(1.0)
        watchdog.beat("actor-0", "runs 8 episodes")
        sentences = watchdog.check()
        if sentences:
            reported_s.append(second)
            assert sentences == (
                "actor-1 has been silent for 5.0 s; it waits for a generator (owner: actors)",
            )
    assert reported_s == [5]


def test_a_peer_that_comes_back_and_dies_again_is_reported_again(clock, watchdog):
    watchdog.forget("actor-0")
    clock.advance(5.0)
    assert len(watchdog.check()) == 1
    watchdog.beat("actor-1", "runs")
    assert watchdog.check() == ()
    clock.advance(5.0)
    assert len(watchdog.check()) == 1


def test_c39_all_actors_dead_ends_the_run_with_the_first_traceback(clock, watchdog):
    watchdog.beat("learner", "trained step 3")
    clock.advance(1.0)
    watchdog.fail("actor-1", "Traceback: first")
    clock.advance(1.0)
    watchdog.fail("actor-0", "Traceback: second")
    for _ in range(28):
        clock.advance(1.0)
        watchdog.beat("learner", "waits for groups", moved=False)
        watchdog.check()
    clock.advance(1.0)
    with pytest.raises(NoProgressError) as caught:
        watchdog.check()
    assert "First failure, 30.0 s ago in actor-1: Traceback: first" in str(caught.value)
    assert "second" not in str(caught.value)
    assert [failure.name for failure in watchdog.failures] == ["actor-1", "actor-0"]


def test_the_party_silent_for_longest_is_named_first(clock, watchdog):
    clock.advance(10.0)
    watchdog.beat("actor-1", "waits for `web`")
    clock.advance(10.0)
    watchdog.beat("actor-0", "runs")
    clock.advance(11.0)
    with pytest.raises(NoProgressError) as caught:
        watchdog.check()
    assert str(caught.value).endswith(
        "learner has not begun (31.0 s ago); actor-1 waits for `web` (21.0 s ago); actor-0 runs (11.0 s ago)"
    )


@pytest.mark.parametrize("limit_s", [0.0, -1.0, float("nan")])
def test_a_limit_that_would_never_or_always_end_the_run_is_refused(clock, limit_s):
    with pytest.raises(ConfigError, match="must be positive"):
        Watchdog(clock, limit_s=limit_s)
