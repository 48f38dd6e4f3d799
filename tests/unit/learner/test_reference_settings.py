from __future__ import annotations

import pytest

from forebay.errors import ConfigError
from forebay.learner.reference_settings import ReferenceSettings
from forebay.models.settings import ComputeSettings

HALF = ComputeSettings(compute_dtype="bfloat16")


@pytest.mark.parametrize(
    ("settings", "origins"),
    [
        ({}, ["source"] * 5),
        ({"update_every": 2}, ["source", "source", "policy", "own", "policy"]),
        ({"update_every": 2, "update_share": 0.5}, ["source", "source", "own", "own", "own"]),
        ({"update_every": 1, "update_share": 0.5}, ["source", "own", "own", "own", "own"]),
        ({"update_every": 1}, ["policy"] * 5),
    ],
)
def test_where_the_reference_can_be_had_from(settings: dict, origins: list[str]) -> None:
    assert [ReferenceSettings(**settings).origin_at(batches) for batches in range(5)] == origins


@pytest.mark.parametrize(
    ("settings", "compute", "dtype"),
    [
        ({}, ComputeSettings(), "float32"),
        ({}, HALF, "bfloat16"),
        ({"dtype": "float32"}, HALF, "float32"),
        ({"dtype": "bfloat16"}, ComputeSettings(), "bfloat16"),
        ({"update_every": 5}, HALF, "bfloat16"),
        ({"update_every": 1, "update_share": 0.01}, HALF, "float32"),
        ({"update_every": 1}, HALF, "float32"),  # the policy's own parameters
    ],
)
def test_the_type_it_is_held_in(settings: dict, compute: ComputeSettings, dtype: str) -> None:
    assert ReferenceSettings(**settings).held_dtype(compute) == dtype


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"update_share": 0.1}, "update_every=0 never does"),
        ({"update_every": 1, "update_share": 0.1, "dtype": "bfloat16"}, "would stand still"),
        ({"update_every": 1, "source": "model"}, "would never be looked at"),
    ],
)
def test_settings_that_contradict_one_another_are_refused(settings: dict, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        ReferenceSettings(**settings)


def test_a_reference_that_always_is_the_policy_needs_several_updates_per_batch() -> None:
    settings = ReferenceSettings(update_every=1)
    settings.check_penalty(2)
    with pytest.raises(ConfigError, match=r"the penalty 0 .*1 update per batch, limit 2"):
        settings.check_penalty(1)
