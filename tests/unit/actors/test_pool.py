"""The pool between a real (memory) store and a scripted generator, in virtual time."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from typing import Any

import pytest

from forebay.envs.protocol import Action, Outcome
from forebay.errors import ConfigError, PeerFailedError, StoreError
from forebay.store.protocol import Slot
from forebay.trajectory import PolicyVersion, Task, Trajectory
from tests.unit.actors.support import (
    CHAT,
    Scripted,
    ScriptedGenerator,
    SlowCalculator,
    calculator_task,
    group,
    kind,
    make_pool,
    make_store,
    run_until,
    run_virtual,
    solve,
    take_all,
)


def test_groups_are_filled_with_exact_trajectories() -> None:
    async def main() -> None:
        store, generator = make_store([group(0), group(1, calculator_task("8-9"))]), ScriptedGenerator()
        pool = make_pool(store, generator)
        await run_until(pool, lambda: store.stats().settled_groups == 2)
        first, second = take_all(store)
        assert [t.reward for t in first.trajectories] == [1.0] * 4
        assert CHAT.decode(first.trajectories[0].sequences[0].tokens) == (
            "<bos><user>17+25*3<end><assistant>17+25=<end><tool>42<end>"
            "<assistant>42*3=<end><tool>126<end><assistant>#126<end>"
        )
        assert [len(t.steps) for t in second.trajectories] == [2] * 4
        assert CHAT.decode(second.trajectories[0].sequences[0].tokens).endswith("<assistant>#-1<end>")
        assert {t.tokenizer for t in first.trajectories} == {CHAT.fingerprint}
        assert first.trajectories[2].steps[0].environment_s == pytest.approx(1.0)
        assert pool.counters["receipts.accepted"] == 8
        assert len(pool.episodes.drain()) == 8

    run_virtual(main())


def test_requests_carry_what_the_generator_needs() -> None:
    async def main() -> None:
        generator = ScriptedGenerator(version=PolicyVersion(1, 5))
        store = make_store([group(0, size=2, min_version=PolicyVersion(1, 3))])
        await run_until(make_pool(store, generator), lambda: store.stats().settled_groups == 1)
        assert len(generator.requests) == 6
        assert {r.min_version for r in generator.requests} == {PolicyVersion(1, 5)}
        assert len({r.seed for r in generator.requests}) == 6
        assert len({r.request_id for r in generator.requests}) == 6
        assert len({r.episode_id for r in generator.requests}) == 2
        assert all(r.keep and r.stop_tokens == (2,) for r in generator.requests)
        assert sorted(generator.released) == sorted({r.episode_id for r in generator.requests})

    run_virtual(main())


def test_c21_the_same_prompt_twice_stays_two_groups() -> None:
    async def main() -> None:
        answers = iter(["#42"] * 3 + ["#1"] + ["#1"] * 3 + ["#42"])
        generator = ScriptedGenerator(policy=lambda prompt: next(answers))
        task = calculator_task("40+2")
        store = make_store([group(0, task), group(1, task)])
        pool = make_pool(store, generator, episodes_per_process=1)
        await run_until(pool, lambda: store.stats().settled_groups == 2)
        rewards = {g.spec.group_id: [t.reward for t in g.trajectories] for g in take_all(store)}
        assert rewards == {"g0": [1.0, 1.0, 1.0, 0.0], "g1": [0.0, 0.0, 0.0, 1.0]}

    run_virtual(main())


def test_c23_every_member_epoch_and_run_samples_differently() -> None:
    async def seeds(run_seed: int, serials: tuple[int, ...]) -> list[int]:
        generator = ScriptedGenerator()
        store = make_store([group(serial, size=8) for serial in serials])
        pool = make_pool(store, generator)
        pool._run_seed = run_seed
        await run_until(pool, lambda: store.stats().settled_groups == len(serials))
        return sorted(r.seed for r in generator.requests if r.request_id.endswith(".0"))

    first, again = run_virtual(seeds(0, (0,))), run_virtual(seeds(0, (0,)))
    other_run, two_epochs = run_virtual(seeds(1, (0,))), run_virtual(seeds(0, (0, 1)))
    assert len(set(first)) == 8
    assert first == again
    assert not set(first) & set(other_run)
    assert len(set(two_epochs)) == 16


def test_c02_a_completion_without_all_logprobs_is_rejected_and_counted() -> None:
    async def main() -> None:
        store = make_store([group(0, size=2)])
        pool = make_pool(store, ScriptedGenerator(cut_logprobs=True))
        await run_until(pool, lambda: store.stats().counters.get("dropped.failed", 0) == 1)
        assert pool.counters["rejected.logprob_mismatch"] == 6  # 2 members x 3 attempts
        assert store.stats().counters["errors.logprob_mismatch"] == 6
        assert store.stats().counters.get("accepted", 0) == 0

    run_virtual(main())


def test_c38_one_stuck_environment_is_settled_as_a_timeout() -> None:
    async def main() -> None:
        async def sleep(action: Action) -> Outcome:
            await asyncio.sleep(3600.0)
            return Outcome()

        made = iter(range(100))

        def make(_: int) -> Any:
            return Scripted(step=sleep) if next(made) == 1 else SlowCalculator()

        store = make_store([group(0), group(1)])
        pool = make_pool(store, ScriptedGenerator(), kind(make, episode_timeout_s=60.0, step_timeout_s=2.0))
        await run_until(pool, lambda: store.stats().settled_groups == 2, limit_s=10.0)
        trajectories = [t for g in take_all(store) for t in g.trajectories]
        assert [t.finish for t in trajectories].count("timeout") == 1
        stuck = next(t for t in trajectories if t.finish == "timeout")
        assert (stuck.reward, stuck.truncated, stuck.attempt) == (None, True, 0)
        assert stuck.num_action_tokens == 7
        assert store.stats().counters["timeouts"] == 1
        assert [t.reward for t in trajectories if t is not stuck] == [1.0] * 7

    run_virtual(main())


def test_an_environment_that_ignores_cancellation_is_left_alone() -> None:
    async def main() -> None:
        async def ignore(action: Action) -> Outcome:
            for _ in range(50):
                try:
                    await asyncio.sleep(10.0)
                except asyncio.CancelledError:
                    continue
            return Outcome()

        store = make_store([group(0, size=2)])
        pool = make_pool(
            store, ScriptedGenerator(), kind(lambda _: Scripted(step=ignore), step_timeout_s=2.0)
        )
        await run_until(pool, lambda: store.stats().settled_groups == 1, limit_s=4.0)
        assert pool.stats()["finished.timeout"] == 2
        await asyncio.sleep(2.0)
        assert pool.stats()["abandoned"] == 2
        await asyncio.sleep(1000.0)

    run_virtual(main())


@pytest.mark.parametrize(
    "fault", [ValueError("broken"), SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()]
)
def test_a_crashing_environment_costs_only_its_own_slot(fault: BaseException) -> None:
    async def main() -> None:
        async def crash(action: Action) -> Outcome:
            raise fault

        crashing = kind(lambda _: Scripted(step=crash), name="crashing")
        bad, good = calculator_task(environment="crashing"), calculator_task()
        store = make_store([group(0, bad, size=2), group(1, good, size=2)])
        pool = make_pool(store, ScriptedGenerator(), crashing, kind())
        await run_until(
            pool,
            lambda: (store.stats().settled_groups, store.stats().counters.get("dropped.failed")) == (1, 1),
        )
        assert pool.counters["failed.environment"] == 6
        assert pool.counters["receipts.accepted"] == 2

    run_virtual(main())


@pytest.mark.parametrize(
    "outcome",
    ["not an outcome", Outcome(reward="high"), Outcome(metrics={"x": "y"})],  # type: ignore[arg-type]
)
def test_an_environment_that_breaks_its_contract_fails_its_slot(outcome: Any) -> None:
    async def main() -> None:
        async def answer(action: Action) -> Any:
            return outcome

        store = make_store([group(0, size=1)])
        pool = make_pool(store, ScriptedGenerator(), kind(lambda _: Scripted(step=answer)))
        await run_until(pool, lambda: store.stats().counters.get("dropped.failed") == 1)
        assert store.stats().counters["errors.environment"] == 3

    run_virtual(main())


def test_c15_a_reward_that_is_not_a_number_is_no_reward() -> None:
    async def main() -> None:
        async def answer(action: Action) -> Outcome:
            return Outcome(reward=math.nan, terminated=True, metrics={"a": math.inf, "b": 2.0})

        store = make_store([group(0, size=1)])
        pool = make_pool(store, ScriptedGenerator(), kind(lambda _: Scripted(step=answer)))
        await run_until(pool, lambda: store.stats().settled_groups == 1)
        trajectory = take_all(store)[0].trajectories[0]
        assert trajectory.reward is None
        assert trajectory.metrics == {"b": 2.0, "branches": 0.0}

    run_virtual(main())


def test_c40_a_prompt_that_never_fits_is_dropped_and_the_run_goes_on() -> None:
    async def main() -> None:
        long = calculator_task("+".join(["123456"] * 6), task_id="long")
        generator = ScriptedGenerator(policy=lambda p: "#42", context=32)
        store = make_store(
            [group(0, long, size=2), *[group(i, calculator_task("40+2")) for i in range(1, 11)]]
        )
        pool = make_pool(store, generator)
        await run_until(pool, lambda: store.stats().settled_groups == 10 and store.stats().open_groups == 0)
        assert store.stats().counters["errors.context"] == 6  # 2 members x 3 attempts
        assert store.stats().counters["dropped.failed"] == 1
        assert all("123456" not in CHAT.decode(r.prompt) for r in generator.requests)

    run_virtual(main())


def test_c42_only_one_of_two_attempts_is_stored() -> None:
    async def main() -> None:
        store = make_store([group(0, size=1)])

        class Deaf:
            """The first actor's view of the store: its heartbeats get lost on the way."""

            def heartbeat(self, slots: list[Slot], *, ttl_s: float) -> tuple[Slot, ...]:
                return ()

            def __getattr__(self, name: str) -> Any:
                return getattr(store, name)

        slow, fast = ScriptedGenerator(delay_s=0.5), ScriptedGenerator(delay_s=0.6)
        a = make_pool(Deaf(), slow, lease_ttl_s=1.0, heartbeat_s=0.5, episodes_per_process=1)
        b = make_pool(store, fast, lease_ttl_s=60.0, heartbeat_s=30.0)
        first = asyncio.create_task(run_until(a, lambda: a.counters["receipts.accepted"] == 1))
        await asyncio.sleep(0.2)
        await run_until(b, lambda: b.counters["receipts.late"] == 1)
        await first
        assert a.counters["receipts.accepted"] == 1
        assert store.stats().counters["accepted"] == 1
        assert store.stats().counters["expired"] == 1
        assert store.stats().counters["late"] == 1
        assert [t.attempt for t in take_all(store)[0].trajectories] == [0]

    run_virtual(main())


def test_c35_a_generator_that_went_back_in_time_gets_no_work() -> None:
    async def main() -> None:
        generator = ScriptedGenerator(version=PolicyVersion(0, 40))
        store = make_store([group(0, size=2)])
        pool = make_pool(store, generator)
        running = asyncio.create_task(pool.run())
        while store.stats().settled_groups < 1:
            await asyncio.sleep(0.1)
        # The learner crashed; the generator serves the initial weights until checkpoint 38 is restored.
        generator.version = PolicyVersion(0, 0)
        store.dispatch([group(1, size=2), group(2, size=2)], incarnation=0)
        await asyncio.sleep(20.0)
        assert store.stats().settled_groups <= 2  # what was claimed before the look at the version
        sampled_meanwhile = len(generator.requests)
        assert pool.counters["refused.old_version"] >= 1
        await asyncio.sleep(10.0)
        assert len(generator.requests) == sampled_meanwhile
        generator.version = PolicyVersion(1, 38)
        while store.stats().settled_groups < 3:
            await asyncio.sleep(0.1)
        pool.drain()
        await running
        versions = [t.oldest_version for g in take_all(store) for t in g.trajectories]
        assert set(versions) <= {PolicyVersion(0, 40), PolicyVersion(1, 38)}
        assert versions[-1] == PolicyVersion(1, 38)

    run_virtual(main())


def test_c35_tokens_older_than_asked_for_are_refused() -> None:
    async def main() -> None:
        generator = ScriptedGenerator(version=PolicyVersion(0, 5), served_version=PolicyVersion(0, 4))
        store = make_store([group(0, size=1)])
        pool = make_pool(store, generator)
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(5.0)
        generator.served_version = None
        while store.stats().settled_groups < 1:
            await asyncio.sleep(0.1)
        pool.drain()
        await running
        assert 1 <= pool.counters["refused.old_version"] <= 10
        assert take_all(store)[0].trajectories[0].oldest_version == PolicyVersion(0, 5)

    run_virtual(main())


def test_a_generator_that_is_down_costs_no_attempt_and_no_hot_loop() -> None:
    async def main() -> None:
        generator = ScriptedGenerator()
        store = make_store([group(0), group(1)])
        pool = make_pool(store, generator, peer_patience_s=100.0)
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(1.5)
        generator.down = True
        await asyncio.sleep(60.0)
        assert store.stats().leased_slots == 0
        assert generator.num_info < 30
        generator.down = False
        while store.stats().settled_groups < 2:
            await asyncio.sleep(0.1)
        pool.drain()
        await running
        assert {t.attempt for g in take_all(store) for t in g.trajectories} == {0}
        assert pool.counters["released"] == 8

    run_virtual(main())


def test_a_generator_that_stays_down_ends_the_process_with_the_cause() -> None:
    async def main() -> None:
        pool = make_pool(make_store([group(0)]), ScriptedGenerator(down=True), peer_patience_s=20.0)
        await pool.run()

    with pytest.raises(PeerFailedError, match=r"generator keeps failing: connection refused"):
        run_virtual(main())


def test_a_refused_request_is_an_attempt() -> None:
    async def main() -> None:
        generator = ScriptedGenerator(context=64)
        store = make_store([group(0, size=1)])
        pool = make_pool(store, generator)
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(0.5)
        generator.context = 8  # it no longer takes what it said it would
        while store.stats().counters.get("dropped.failed") is None:
            await asyncio.sleep(0.1)
        pool.drain()
        await running
        assert store.stats().counters["errors.generator"] == 3

    run_virtual(main())


class Braking:
    """A store that cannot write for a while."""

    def __init__(self, store: Any, failures: int) -> None:
        self._store, self.failures = store, failures

    def put_many(self, results: Sequence[tuple[Trajectory, Slot]]) -> list[Any]:
        outcomes: list[Any] = []
        for result in results:
            failed = self.failures > 0
            self.failures -= int(failed)
            outcomes += [StoreError("the disk is full")] if failed else self._store.put_many([result])
        return outcomes

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_c53_a_store_that_brakes_is_waited_for() -> None:
    async def main() -> None:
        store = make_store([group(0)])
        pool = make_pool(Braking(store, failures=9), ScriptedGenerator())
        await run_until(pool, lambda: store.stats().settled_groups == 1)
        assert pool.counters["store_errors"] == 9
        assert store.stats().counters["accepted"] == 4
        assert {t.attempt for t in take_all(store)[0].trajectories} == {0}

    run_virtual(main())


def test_a_store_that_stays_broken_ends_the_process_with_the_cause() -> None:
    async def main() -> None:
        pool = make_pool(Braking(make_store([group(0)]), 10**9), ScriptedGenerator(), peer_patience_s=10.0)
        await pool.run()

    with pytest.raises(PeerFailedError, match=r"store keeps failing: the disk is full"):
        run_virtual(main())


def test_a_broken_store_does_not_hide_or_delay_the_cause_at_the_end() -> None:
    class Broken(Braking):
        def release_slot(self, slot: Slot) -> None:
            raise StoreError("the disk is full")

    async def main() -> float:
        generator = ScriptedGenerator(policy=lambda p: "#42" if "40+2" in p else solve(p))
        store = make_store([group(0, calculator_task("40+2"), size=1), group(1, calculator_task("1+1+1+1"))])
        pool = make_pool(Broken(store, 10**9), generator, peer_patience_s=3.0)
        with pytest.raises(PeerFailedError, match=r"store keeps failing: the disk is full"):
            await pool.run()
        return asyncio.get_running_loop().time()

    assert run_virtual(main()) < 10.0


def test_an_episode_ends_before_its_group_does() -> None:
    async def main() -> None:
        store = make_store([group(0, calculator_task("1+1+1+1+1+1+1"), size=2, minimum=1, deadline_s=4.0)])
        pool = make_pool(store, ScriptedGenerator())
        await run_until(pool, lambda: store.stats().settled_groups == 1)
        trajectories = take_all(store)[0].trajectories
        assert [(t.finish, t.reward) for t in trajectories] == [("timeout", None)] * 2
        assert [len(t.steps) for t in trajectories] == [4, 4]

    run_virtual(main())


def test_c44_statistics_without_a_reader_cost_nothing() -> None:
    async def main() -> None:
        store = make_store([group(i) for i in range(25)])
        pool = make_pool(store, ScriptedGenerator(), stats_queue=10, episodes_per_process=100)
        await run_until(pool, lambda: store.stats().settled_groups == 25)
        assert pool.stats()["stats_lost"] == 90
        assert len(pool.episodes.drain()) == 10

    run_virtual(main())


def test_drain_lets_running_episodes_finish_and_claims_no_more() -> None:
    async def main() -> None:
        store = make_store([group(0), group(1)])
        pool = make_pool(store, ScriptedGenerator(), episodes_per_process=4)
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(1.0)
        pool.drain()
        await running
        assert store.stats().counters["accepted"] == 4
        assert store.stats().leased_slots == 0
        assert store.stats().settled_groups == 1

    run_virtual(main())


@pytest.mark.parametrize("second_signal", [False, True])
def test_what_cannot_finish_in_time_is_given_back_untried(second_signal: bool) -> None:
    async def main() -> None:
        async def sleep(action: Action) -> Outcome:
            await asyncio.sleep(500.0)
            return Outcome()

        store = make_store([group(0)])
        pool = make_pool(
            store,
            ScriptedGenerator(),
            kind(lambda _: Scripted(step=sleep), step_timeout_s=1000.0, episode_timeout_s=1000.0),
        )
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(1.0)
        assert store.stats().leased_slots == 4
        pool.drain()
        if second_signal:
            pool.drain()
        started_s = asyncio.get_running_loop().time()
        await running
        taken_s = asyncio.get_running_loop().time() - started_s
        assert taken_s < 2.0 if second_signal else 5.0 <= taken_s < 8.0
        assert store.stats().leased_slots == 0
        assert store.stats().counters["released"] == 4
        slots = store.claim(4, ttl_s=30.0, actor="next", version=PolicyVersion(0, 0))
        assert [slot.attempt for slot in slots] == [0] * 4

    run_virtual(main())


def test_leases_are_renewed_while_episodes_run() -> None:
    async def main() -> None:
        async def sleep(action: Action) -> Outcome:
            await asyncio.sleep(50.0)
            return Outcome(reward=1.0, terminated=True)

        store = make_store([group(0)])
        pool = make_pool(
            store, ScriptedGenerator(), kind(lambda _: Scripted(step=sleep)), lease_ttl_s=4.0, heartbeat_s=1.0
        )
        await run_until(pool, lambda: store.stats().settled_groups == 1)
        assert store.stats().counters.get("expired", 0) == 0

    run_virtual(main())


def test_an_episode_whose_group_is_gone_is_ended() -> None:
    async def main() -> None:
        async def sleep(action: Action) -> Outcome:
            await asyncio.sleep(500.0)
            return Outcome()

        store = make_store([group(0, deadline_s=20.0)])
        pool = make_pool(
            store,
            ScriptedGenerator(),
            kind(lambda _: Scripted(step=sleep), step_timeout_s=900.0, episode_timeout_s=900.0),
            put_margin_s=0.0,
            heartbeat_s=1.0,
        )
        running = asyncio.create_task(pool.run())
        await asyncio.sleep(5.0)
        for slot_number in range(4):
            store.fail(_slot(store, slot_number), reason="operator")
        await asyncio.sleep(3.0)
        assert pool.counters["leases_lost"] == 4
        pool.drain()
        pool.drain()
        await running

    run_virtual(main())


def _slot(store: Any, member: int) -> Slot:
    return Slot(
        group_id="g0",
        member=member,
        attempt=0,
        task=Task(task_id="t", environment="calculator", payload={}),
        group_size=4,
        incarnation=0,
        min_version=PolicyVersion(0, 0),
        lease_expires_s=0.0,
        group_deadline_s=0.0,
        run_id="run",
    )


def test_a_tokenizer_that_is_too_large_for_the_model_is_refused() -> None:
    async def main() -> None:
        pool = make_pool(make_store([group(0)]), ScriptedGenerator(vocabulary=40))
        await pool.run()

    with pytest.raises(ConfigError, match=r"got 64 ids, limit vocabulary 40"):
        run_virtual(main())


def test_hundreds_of_episodes_at_once() -> None:
    async def main() -> float:
        store = make_store([group(i) for i in range(100)])
        pool = make_pool(store, ScriptedGenerator(policy=solve), episodes_per_process=400)
        await run_until(pool, lambda: store.stats().settled_groups == 100)
        return asyncio.get_running_loop().time()

    # 2 tool calls of 1 s and 3 generations: all at once, not one after another.
    assert run_virtual(main()) < 5.0
