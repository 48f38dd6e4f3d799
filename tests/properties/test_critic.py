"""What holds for credit by a critic, whatever the numbers: order, neighbors, and the plain returns."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.learner.critic import Critic
from forebay.objectives import ObjectiveSettings, build_batch_advantages
from forebay.objectives.gae import generalized_advantages
from forebay.objectives.turn_credit import turn_returns
from forebay.objectives.vtrace import vtrace
from forebay.staleness import StalenessSettings
from forebay.store.protocol import TakenGroup
from tests.golden import critic_oracle as oracle
from tests.golden.test_objectives_critic import Arrays, arrays
from tests.unit.batching.records import NOW, group, sequence, token_mean, trajectory
from tests.unit.learner.test_critic import KnownValues, by_token

batches = st.builds(
    oracle.random_episodes, st.integers(0, 10**6), st.lists(st.integers(1, 9), min_size=1, max_size=6)
)
shares = st.floats(0.0, 1.0)
caps = st.floats(1.0, 5.0) | st.just(math.inf)


def zeros(given: Arrays) -> Arrays:
    return given._replace(values=np.zeros_like(given.values), last_values=np.zeros_like(given.last_values))


@given(batch=batches)
@settings(max_examples=40)
def test_without_a_critic_gae_is_the_return_to_go(batch: list[oracle.Episode]) -> None:
    given = zeros(arrays(batch))
    credit = generalized_advantages(*given[1:])
    for part, rewards in zip(_split(credit.advantages, given), _split(given.rewards, given), strict=True):
        np.testing.assert_allclose(part, np.cumsum(rewards[::-1])[::-1], rtol=1e-9, atol=1e-9)


@given(batch=batches, gamma=shares, lam=shares, rho_cap=caps, more=st.floats(0.0, 1.0))
@settings(max_examples=40)
def test_on_fresh_data_vtrace_is_gae_whatever_its_caps(
    batch: list[oracle.Episode], gamma: float, lam: float, rho_cap: float, more: float
) -> None:
    given = arrays(batch)
    fresh = given._replace(log_ratios=np.zeros_like(given.log_ratios))
    c_cap = 1.0 if math.isinf(rho_cap) else 1.0 + more * (rho_cap - 1.0)
    corrected = vtrace(*fresh, gamma=gamma, trace_lambda=lam, rho_cap=rho_cap, c_cap=c_cap)
    plain = generalized_advantages(*fresh[1:], gamma=gamma, gae_lambda=lam)
    np.testing.assert_allclose(corrected.targets, plain.targets, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(corrected.advantages, plain.advantages, rtol=1e-9, atol=1e-9)


@given(batch=batches, gamma=shares, lam=shares, order=st.randoms(use_true_random=False))
@settings(max_examples=40)
def test_an_episodes_numbers_are_the_same_bits_in_any_company(
    batch: list[oracle.Episode], gamma: float, lam: float, order: object
) -> None:
    together, given = _both(arrays(batch), gamma, lam), arrays(batch)
    places = list(range(len(batch)))
    order.shuffle(places)  # type: ignore[attr-defined]
    shuffled = arrays([batch[place] for place in places])
    parts = [_split(array, given) for array in together]
    for array, mine in zip(_both(shuffled, gamma, lam), parts, strict=True):
        for place, part in zip(places, _split(array, shuffled), strict=True):
            assert part.tolist() == mine[place].tolist()


@given(
    group=st.lists(st.lists(st.floats(-2, 2), min_size=0, max_size=5), min_size=1, max_size=6),
    gamma=shares,
)
@settings(max_examples=60)
def test_the_advantages_of_a_turn_add_up_to_nothing(group: list[list[float]], gamma: float) -> None:
    result = turn_returns([np.array(own) for own in group], gamma=gamma)
    assert result.turn_advantages is not None
    for turn in range(max(map(len, group), default=0)):
        total = sum(own[turn] for own in result.turn_advantages if len(own) > turn)
        assert abs(total) < 1e-9


ROWS = ((1, 32), (3, 32), (2, 80))
masks = st.lists(st.booleans(), min_size=1, max_size=9).filter(any)


@given(
    episodes=st.lists(st.tuples(masks, st.floats(-1, 1), st.booleans()), min_size=1, max_size=6),
    order=st.randoms(use_true_random=False),
    layout=st.sampled_from(ROWS),
)
@settings(max_examples=30)
def test_packing_padding_and_order_change_no_bit_of_a_tokens_credit(
    episodes: list[tuple[list[bool], float, bool]], order: object, layout: tuple[int, int]
) -> None:
    """Every token has an id of its own, and its value follows from it."""
    chosen = ObjectiveSettings(advantage="gae", gamma=0.97, gae_lambda=0.9)
    groups = [
        group(
            trajectory(
                sequence(range(100 + 20 * i, 101 + 20 * i + len(mask)), [0, *map(int, mask)]),
                reward=reward,
                name=f"t{i}",
                terminated=not cut_off,
                truncated=cut_off,
                finish="truncated" if cut_off else "terminated",
            ),
            group_id=f"g{i}",
        )
        for i, (mask, reward, cut_off) in enumerate(episodes)
    ]
    expected = _judged(groups, chosen, *ROWS[0])
    order.shuffle(groups)  # type: ignore[attr-defined]
    assert _judged(groups, chosen, *layout) == expected


def _judged(
    groups: list[TakenGroup], chosen: ObjectiveSettings, rows: int, row_length: int
) -> dict[int, tuple[float, float]]:
    batching = BatchingSettings(
        groups=len(groups), group_size=1, max_length=32, rows=rows, row_length=row_length, max_programs=3
    )
    updates = build_updates(
        groups,
        now=NOW,
        forks=(),
        staleness=StalenessSettings(),
        settings=batching,
        ladder=build_ladder(batching),
        advantage=build_batch_advantages(chosen),
        denominator=token_mean,
    )
    judged = Critic(KnownValues(), chosen).annotate(2.0, updates)
    advantages, targets = by_token(judged, "advantages"), by_token(judged, "value_targets")
    return {token: (advantages[token], targets[token]) for token in advantages}


def _both(given: Arrays, gamma: float, lam: float) -> tuple[np.ndarray, ...]:
    credit = generalized_advantages(*given[1:], gamma=gamma, gae_lambda=lam)
    return (*credit, *vtrace(*given, gamma=gamma, trace_lambda=lam, rho_cap=1.5, c_cap=1.2))


def _split(array: np.ndarray, given: Arrays) -> list[np.ndarray]:
    return np.split(array, np.cumsum(given.lengths)[:-1])
