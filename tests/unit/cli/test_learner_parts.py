from __future__ import annotations

from types import SimpleNamespace

import pytest

from forebay.cli.learner_parts import LearnerParts, make_parts
from forebay.config import load_config
from forebay.learner.annotations import ProximalLogprobs
from forebay.learner.clip_bounds import ClipBounds
from forebay.learner.critic import Critic
from tests.unit.models import tiny


def parts(*overrides: str) -> LearnerParts:
    return make_parts(SimpleNamespace(config=load_config(None, overrides), model=tiny.CONFIG))


@pytest.mark.parametrize(
    ("overrides", "kinds"),
    [
        ((), []),
        (("objective.preset=ppo-critic",), [Critic]),
        (("objective.preset=impala",), [ProximalLogprobs, Critic]),
        (("objective.preset=areal",), [ProximalLogprobs]),
        (("objective.preset=m2po",), [ProximalLogprobs, ClipBounds]),
        (("objective.clip_rule=balance", "objective.advantage=gae"), [ProximalLogprobs, Critic, ClipBounds]),
        (
            (
                "objective.loss=decoupled_ppo",
                "objective.advantage=gae",
                "objective.proximal=recomputed",
                "batching.epochs=2",
            ),
            [ProximalLogprobs, Critic],
        ),
    ],
)
def test_what_is_written_into_a_batch_follows_from_the_objective(
    overrides: tuple[str, ...], kinds: list[type]
) -> None:
    made = parts(*overrides)
    assert [type(annotator) for annotator in made.annotators(None)] == kinds
    has_head = "value_head" in made.programs.abstract_state.params
    assert has_head == (Critic in kinds)


def test_the_reference_of_a_run_with_a_critic_has_no_value_head() -> None:
    made = parts("objective.preset=ppo-critic", "objective.kl_coef=0.1")
    assert made.reference is not None
    assert "value_head" in made.programs.abstract_state.params
    assert "value_head" not in made.reference.abstract
    assert set(made.reference.abstract) == set(tiny.params())
