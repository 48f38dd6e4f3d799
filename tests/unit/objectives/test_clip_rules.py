from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import pytest
from pydantic import ValidationError

from forebay.errors import RecordError
from forebay.objectives import LossInputs, ObjectiveSettings
from forebay.objectives.build import annotations_of, build_objective
from forebay.objectives.clip_rules import build_clip_rule

M2PO = ObjectiveSettings(preset="m2po")


def test_fixed_bounds_need_no_rule() -> None:
    assert build_clip_rule(ObjectiveSettings()) is None
    assert "ratio_bounds" not in annotations_of(ObjectiveSettings())
    assert annotations_of(M2PO) == {"ratio_bounds"}
    assert M2PO.needs_current_logprobs and not ObjectiveSettings().needs_current_logprobs


def test_the_second_moment_never_narrows_the_set_bounds() -> None:
    rule = build_clip_rule(M2PO)
    assert rule is not None
    assert rule(np.full(9, 3.0), np.ones(9)) == (pytest.approx(0.7), pytest.approx(1.5))
    low, high = rule(np.array([0.7] + [0.0] * 2 + [0.1] * 9), np.ones(12))
    assert (low, high) == (pytest.approx(math.exp(-0.5567764362830022)), pytest.approx(1.7450381821146503))
    assert rule(np.zeros(2), np.ones(2)) == (pytest.approx(math.exp(-20.0)), pytest.approx(math.exp(20.0)))


def test_a_balance_moves_between_its_settings() -> None:
    rule = build_clip_rule(ObjectiveSettings(preset="bapo", balance_clip_low=0.1, balance_clip_high=3.0))
    assert rule is not None
    assert rule(np.zeros(2), np.array([1.0, -1.0])) == (pytest.approx(0.6), pytest.approx(1.2))
    assert rule(np.zeros(1), -np.ones(1)) == (pytest.approx(0.9), pytest.approx(4.0))


def test_each_token_is_clipped_on_the_side_it_is_pushed_to() -> None:
    objective = build_objective(ObjectiveSettings(preset="m2po", advantage="group_mean"))
    ratios = jnp.array([[3.0, 3.0, 0.2, 0.2]])
    behavior, mask = jnp.full((1, 4), -1.0), jnp.ones((1, 4), bool)
    inputs = LossInputs(
        mask,
        jnp.array([[1.0, -1.0, 1.0, -1.0]]),
        behavior,
        behavior,
        jnp.ones((1, 4), jnp.int32),
        ratio_bounds=jnp.array([[2.0, 0.5, 2.0, 0.5]]),
    )
    loss, sums = objective(behavior + jnp.log(ratios), jnp.zeros((1, 4)), inputs, jnp.float32(1))
    assert float(loss) == pytest.approx(-2.0 + 3.0 - 0.2 + 0.5, rel=1e-5)
    assert float(sums.clipped_tokens) == 2.0
    with pytest.raises(RecordError, match="needs each ratio's bound"):
        objective(behavior, jnp.zeros((1, 4)), inputs._replace(ratio_bounds=None), jnp.float32(1))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"clip_rule": "balance", "loss": "cispo"}, r"got loss cispo.*Set loss = \"ppo_clip\""),
        ({"clip_rule": "second_moment", "ratio": "sequence"}, r"got ratio sequence"),
        ({"second_moment_limit": 0.1}, r"second_moment_limit = 0.1 is unused.*\"fixed\""),
        ({"clip_rule": "second_moment", "balance_step": 0.1}, r"balance_step = 0.1 is unused"),
        ({"preset": "m2po", "kl_coef": 0.1, "kl_in": "reward"}, r"kl_in = \"loss\", or clip_rule"),
        ({"preset": "bapo", "balance_clip_low": 0.5}, r"only rise.*Lower objective.balance_clip_low"),
        ({"preset": "bapo", "clip_high": 2.0}, r"raise objective.balance_clip_high"),
        ({"preset": "m2po", "clip_rule": "fixed"}, r"means clip_rule = 'second_moment'"),
    ],
)
def test_what_would_change_nothing_or_contradict_is_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        ObjectiveSettings(**given)
