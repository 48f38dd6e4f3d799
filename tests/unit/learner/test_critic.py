"""The critic of a learner: from the values of positions to the advantages and targets of tokens."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np
import pytest

from forebay.batching.batch import Batch
from forebay.batching.ladder import build_ladder
from forebay.batching.settings import BatchingSettings
from forebay.batching.updates import build_updates
from forebay.errors import RecordError
from forebay.learner.critic import Critic
from forebay.objectives import ObjectiveSettings, build_batch_advantages
from forebay.staleness import StalenessSettings
from forebay.store.protocol import TakenGroup
from forebay.trajectory import StepRecord, Trajectory
from tests.golden import critic_oracle as oracle
from tests.unit.batching.records import NOW, flat, group, sequence, token_mean, trajectory

CUT_OFF = {"terminated": False, "truncated": True, "finish": "truncated"}


class KnownValues:
    """Stands for compiled programs: the value after a position follows from the tokens there."""

    def __init__(self) -> None:
        self.num_calls = 0

    def place(self, rows: Any) -> Any:
        return rows

    def values(self, params: float, rows: Any) -> np.ndarray:
        self.num_calls += 1
        return (params * np.sin(rows.tokens + 3.0 * rows.positions)).astype(np.float32)


def value_after(token: int, position: int) -> float:
    return float(np.float32(2.0 * math.sin(token + 3.0 * position)))


def episode(
    name: str, mask: list[int], rewards: list[float | None], first: int, **changes: Any
) -> Trajectory:
    tokens = sequence(
        range(first, first + len(mask)), mask, logprobs=[-1.0 - 0.1 * i for i in range(sum(mask))]
    )
    steps = tuple(StepRecord(reward, "stop", 0.0, 0.0, 0.0) for reward in rewards)
    total = sum(reward for reward in rewards if reward is not None)
    return trajectory(tokens, name=name, steps=steps, reward=total, **changes)


def groups() -> list[TakenGroup]:
    return [
        group(
            episode("a", [0, 1, 1, 0, 0, 1], [0.5, 1.0], 100),
            episode("b", [0, 0, 1], [0.0], 120, **CUT_OFF),
            group_id="g0",
        ),
        group(episode("c", [0, 1, 0, 1, 1, 0], [None, 2.0], 140), group_id="g1"),
    ]


def packed(settings: ObjectiveSettings, **batching: Any) -> tuple[Batch, ...]:
    chosen = BatchingSettings(**({"groups": 2, "max_length": 32, "rows": 1, "max_programs": 4} | batching))
    return build_updates(
        groups(),
        now=NOW,
        forks=(),
        staleness=StalenessSettings(on_stale="mask"),
        settings=chosen,
        ladder=build_ladder(chosen),
        advantage=build_batch_advantages(settings),
        denominator=token_mean,
    )


def by_token(updates: tuple[Batch, ...], name: str) -> dict[int, float]:
    found: dict[int, float] = {}
    for update in updates:
        rows = flat(update)
        found |= dict(
            zip(rows.tokens[rows.loss_mask].tolist(), getattr(rows, name)[rows.loss_mask], strict=True)
        )
    return found


def expected(settings: ObjectiveSettings, log_ratio: float = 0.0) -> dict[int, tuple[float, float]]:
    """Return advantage and target of every trained token, by its id, from the oracle's sums."""
    found = {}
    for one in (member for taken in groups() for member in taken.trajectories):
        tokens, mask = one.sequences[0].tokens.tolist(), one.sequences[0].action_mask()
        gained = {span.stop - 1: one.steps[span.step].reward or 0.0 for span in one.sequences[0].action_spans}
        steps = [
            oracle.Step(gained.get(at, 0.0), value_after(tokens[at - 1], at - 1), log_ratio, bool(mask[at]))
            for at in range(1, len(tokens))
        ]
        last = max(at for at in range(len(tokens)) if mask[at])
        end = value_after(tokens[last], last) if one.truncated and settings.bootstrap_truncated else 0.0
        whole = oracle.Episode(steps, end)
        if settings.advantage == "gae":
            advantages = oracle.gae(whole, settings.gamma, settings.gae_lambda)
            targets = oracle.lambda_returns(whole, settings.gamma, settings.gae_lambda)
        else:
            targets, advantages = oracle.vtrace(whole, settings.gamma, settings.gae_lambda, 1.0, 1.0)
        ids = [token for token, sampled in zip(tokens, mask, strict=True) if sampled]
        found |= dict(zip(ids, zip(advantages, targets, strict=True), strict=True))
    return found


@pytest.mark.parametrize("bootstrap", [True, False])
@pytest.mark.parametrize("minibatches", [1, 2])
def test_every_token_is_judged_as_the_oracle_says(bootstrap: bool, minibatches: int) -> None:
    settings = ObjectiveSettings(
        advantage="gae", gamma=0.9, gae_lambda=0.8, bootstrap_truncated=bootstrap, loss="ppo_clip"
    )
    judged = Critic(KnownValues(), settings).annotate(2.0, packed(settings, minibatches=minibatches))
    advantages, targets = by_token(judged, "advantages"), by_token(judged, "value_targets")
    values = by_token(judged, "values")
    wanted = expected(settings)
    assert advantages.keys() == wanted.keys()
    for token, (advantage, target) in wanted.items():
        assert advantages[token] == pytest.approx(advantage, rel=1e-5)
        assert targets[token] == pytest.approx(target, rel=1e-5)
        assert values[token] == pytest.approx(target - advantage, rel=1e-5)


def test_vtrace_looks_at_the_current_policys_logprobs() -> None:
    settings = ObjectiveSettings(advantage="vtrace", gamma=0.9)
    updates = packed(settings)
    shifted = tuple(
        msgspec.structs.replace(
            update,
            micro_batches=tuple(
                micro._replace(
                    rows=micro.rows._replace(proximal_logprobs=micro.rows.behavior_logprobs - np.float32(0.7))
                )
                for micro in update.micro_batches
            ),
        )
        for update in updates
    )
    judged = Critic(KnownValues(), settings).annotate(2.0, shifted)
    advantages, targets = by_token(judged, "advantages"), by_token(judged, "value_targets")
    for token, (advantage, target) in expected(settings, log_ratio=-0.7).items():
        assert advantages[token] == pytest.approx(advantage, rel=1e-4)
        assert targets[token] == pytest.approx(target, rel=1e-4)


def test_a_lost_behavior_logprob_counts_as_fresh() -> None:
    settings = ObjectiveSettings(advantage="vtrace")
    (update,) = packed(settings)
    lost = tuple(
        micro._replace(
            rows=micro.rows._replace(
                behavior_logprobs=np.full_like(micro.rows.behavior_logprobs, -np.inf),
                proximal_logprobs=np.full_like(micro.rows.behavior_logprobs, -1.0),
            )
        )
        for micro in update.micro_batches
    )
    judged = Critic(KnownValues(), settings).annotate(
        2.0, (msgspec.structs.replace(update, micro_batches=lost),)
    )
    fresh = expected(settings)
    for token, advantage in by_token(judged, "advantages").items():
        assert advantage == pytest.approx(fresh[token][0], rel=1e-5)


@pytest.mark.parametrize("minibatches", [1, 2])
def test_advantages_are_normalized_over_all_tokens_of_the_batch(minibatches: int) -> None:
    settings = ObjectiveSettings(advantage="gae", normalize_advantages=True, loss="ppo_clip")
    judged = Critic(KnownValues(), settings).annotate(2.0, packed(settings, minibatches=minibatches))
    raw = np.array([advantage for advantage, _ in expected(settings).values()])
    wanted = dict(zip(expected(settings), (raw - raw.mean()) / raw.std(ddof=1), strict=True))
    assert by_token(judged, "advantages") == pytest.approx(wanted, rel=1e-4)
    # What the critic is trained on is in units of return.
    targets = {token: target for token, (_, target) in expected(settings).items()}
    assert by_token(judged, "value_targets") == pytest.approx(targets, rel=1e-4)


def test_rows_that_come_again_are_scored_once_and_judged_alike() -> None:
    settings = ObjectiveSettings(advantage="gae", loss="ppo_clip")
    programs = KnownValues()
    judged = Critic(programs, settings).annotate(2.0, packed(settings, epochs=3))
    assert programs.num_calls == len(judged[0].micro_batches)
    assert by_token(judged[:1], "advantages") == by_token(judged[2:], "advantages")


def test_the_layout_of_rows_changes_no_bit() -> None:
    settings = ObjectiveSettings(advantage="gae", gae_lambda=0.95)
    judged = [
        Critic(KnownValues(), settings).annotate(2.0, packed(settings, rows=rows, row_length=length))
        for rows, length in ((1, 32), (4, 32), (2, 96))
    ]
    assert by_token(judged[0], "advantages") == by_token(judged[1], "advantages")
    assert by_token(judged[0], "advantages") == by_token(judged[2], "advantages")
    moments = [updates[0].value_moments for updates in judged]
    assert moments[0] == moments[1] == moments[2]


def test_what_it_knew_is_measured() -> None:
    settings = ObjectiveSettings(advantage="gae")
    (update,) = Critic(KnownValues(), settings).annotate(2.0, packed(settings))
    assert update.value_moments is not None
    pairs = list(expected(settings).values())
    advantages, targets = (np.array(column) for column in zip(*pairs, strict=True))
    assert update.value_moments.explained_variance == pytest.approx(
        1 - np.var(advantages) / np.var(targets), rel=1e-5
    )
    assert update.value_moments.value_mean == pytest.approx((targets - advantages).mean(), rel=1e-5)


def test_empty_updates_stay_as_they_are() -> None:
    settings = ObjectiveSettings(advantage="gae")
    (update,) = packed(settings)
    empty = msgspec.structs.replace(update, micro_batches=(), counts=update.counts._replace(tokens=0))
    assert Critic(KnownValues(), settings).annotate(2.0, (empty,)) == (empty,)
    full, still_empty = Critic(KnownValues(), settings).annotate(2.0, (update, empty))
    assert full.value_moments is not None
    assert still_empty is empty


def test_a_batch_of_another_objective_is_refused() -> None:
    updates = packed(ObjectiveSettings())
    with pytest.raises(RecordError, match="does not say where its rewards lie"):
        Critic(KnownValues(), ObjectiveSettings(advantage="gae")).annotate(2.0, updates)
