from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates, split_minibatches, updates_digest
from forebay.errors import ConfigError
from forebay.objectives import ObjectiveSettings, build_batch_advantages
from forebay.objectives.advantages import by_group, group_mean
from forebay.staleness import StalenessSettings
from tests.unit.batching.records import (
    EXPECTED,
    answer,
    flat,
    group,
    sequence,
    token_mean,
    trained_tokens,
    trajectory,
    v,
)

GROUP_MEAN = by_group(group_mean)


def updates_of(
    groups: list[Any], now: int, max_staleness: int, advantage: Any = GROUP_MEAN, **settings: Any
) -> Any:
    batching = BatchingSettings(groups=len(groups), max_length=32, max_programs=4, **settings)
    return build_updates(
        groups,
        now=v(now),
        forks=(),
        staleness=StalenessSettings(max_staleness=max_staleness, on_stale="mask"),
        settings=batching,
        ladder=build_ladder(batching),
        advantage=advantage,
        denominator=token_mean,
    )


def test_c36_every_minibatch_reports_its_own_staleness() -> None:
    case = EXPECTED["C36"]
    version, now = case["input"]["version_of_data"], case["input"]["learner_version_at_pull"]
    groups = [group(trajectory(answer(3, versions=[version] * 2)), group_id=f"g{i}") for i in range(4)]
    updates = updates_of(groups, now, max_staleness=8, minibatches=4)
    assert [update.now for update in updates] == [v(now + i) for i in range(4)]
    assert [update.stats.staleness_max for update in updates] == case["expect"]["lag_per_minibatch"]
    assert [update.group_ids for update in updates] == [("g0",), ("g1",), ("g2",), ("g3",)]


def test_c36_later_updates_are_checked_against_their_own_version() -> None:
    groups = [group(trajectory(answer(3, versions=[10, 12])), group_id=f"g{i}") for i in range(2)]
    updates = updates_of(groups, 12, max_staleness=2, minibatches=2, epochs=2)
    assert [update.counts.tokens for update in updates] == [2, 1, 1, 0]
    assert [update.denominator for update in updates] == [2.0, 1.0, 1.0, 1.0]
    assert [update.empty for update in updates] == [False, False, False, True]
    assert [update.stats.masked_tokens.get("stale", 0) for update in updates] == [0, 1, 1, 2]


def test_each_minibatch_has_its_own_denominator_and_the_groups_own_baseline() -> None:
    groups = [
        group(trajectory(answer(5), reward=1.0), trajectory(answer(3), reward=0.0), group_id="a"),
        group(trajectory(answer(9), reward=4.0), trajectory(answer(2), reward=4.0), group_id="b"),
    ]
    first, second = updates_of(groups, 10, max_staleness=8, minibatches=2)
    assert (first.counts, second.counts) == ((6, 2), (9, 2))
    assert (first.stats.zero_spread_groups, second.stats.zero_spread_groups) == (0, 1)
    assert first.stats.reward_mean == 0.5


def test_epochs_repeat_the_minibatches() -> None:
    groups = [group(trajectory(sequence([1, 2 + i], [0, 1])), group_id=f"g{i}") for i in range(2)]
    updates = updates_of(groups, 10, max_staleness=8, minibatches=2, epochs=3)
    assert [trained_tokens(update) for update in updates] == [[2], [3]] * 3
    first, second = flat(updates[0]), flat(updates[2])
    for name in set(first._fields) - {"staleness"}:
        assert np.array_equal(getattr(first, name), getattr(second, name)), name
    # The same tokens are two versions older by then.
    assert (second.staleness - first.staleness)[first.loss_mask].tolist() == [2]
    assert updates[0].digest != updates[2].digest


def test_groups_are_split_evenly_or_not_at_all() -> None:
    groups = [group(group_id=f"g{i}") for i in range(6)]
    assert [len(part) for part in split_minibatches(groups, 3)] == [2, 2, 2]
    with pytest.raises(ConfigError, match="6 groups in 4 minibatches"):
        split_minibatches(groups, 4)


def test_the_digest_of_updates_depends_on_their_order() -> None:
    groups = [group(trajectory(sequence([1, 2 + i], [0, 1])), group_id=f"g{i}") for i in range(2)]
    updates = updates_of(groups, 10, max_staleness=8, minibatches=2)
    assert updates_digest(updates) == updates_digest(list(updates))
    assert updates_digest(updates) != updates_digest(updates[::-1])


def test_c36_every_token_knows_how_stale_it_is_for_each_update() -> None:
    groups = [group(trajectory(answer(4, versions=[8, 10, 11])), group_id=f"g{i}") for i in range(2)]
    updates = updates_of(groups, 12, max_staleness=8, minibatches=2, epochs=2)
    for number, update in enumerate(updates):
        rows = flat(update)
        assert rows.staleness[rows.loss_mask].tolist() == [age + number for age in (4, 2, 1)]
        assert not rows.staleness[~rows.loss_mask].any()


def test_advantages_are_normalized_over_the_take_not_over_a_minibatch() -> None:
    settings = ObjectiveSettings(advantage="none", normalize_advantages=True, advantage_eps=1e-12)
    groups = [
        group(trajectory(answer(3), reward=low), trajectory(answer(3), reward=low + 1.0), group_id=f"g{low}")
        for low in (0.0, 2.0)
    ]
    updates = updates_of(groups, 10, 8, build_batch_advantages(settings), minibatches=2)
    values = [sorted(set(flat(update).advantages[flat(update).loss_mask].tolist())) for update in updates]
    spread = (5 / 3) ** 0.5  # of 0, 1, 2, 3
    assert values[0] == pytest.approx([-1.5 / spread, -0.5 / spread])
    assert values[1] == pytest.approx([0.5 / spread, 1.5 / spread])
