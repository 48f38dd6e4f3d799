"""Sizes that can never work are refused, with the arithmetic."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from forebay.errors import ConfigError
from forebay.store import StoreSettings, check_capacity

WORKS: dict[str, Any] = {
    "groups_per_batch": 8,
    "batches_in_flight": 2,
    "member_bytes": 1000,
    "group_size": 4,
    "checkpoint_every": 10,
}
JUST_ENOUGH = {
    "capacity_groups": 16,
    "capacity_bytes": 16 * 4 * 1000,
    "retained_capacity_bytes": (10 + 1) * 8 * 4 * 1000,
}


def test_just_enough_is_enough() -> None:
    check_capacity(StoreSettings(**JUST_ENOUGH), **WORKS)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        (
            "capacity_groups",
            r"got store.capacity_groups=15, limit >= 2 x 8 = 16\)\. Set store.capacity_groups=16",
        ),
        ("capacity_bytes", r"got store.capacity_bytes=63999, limit >= 16 groups x 4 x 1000 bytes = 64000"),
        (
            "retained_capacity_bytes",
            r"got store.retained_capacity_bytes=351999, limit >= \(1 x 10 \+ 1\) batches x 8 groups x "
            r"4000 bytes = 352000\)\. Checkpoint more often",
        ),
    ],
)
def test_one_less_is_refused_with_the_arithmetic(setting: str, message: str) -> None:
    settings = StoreSettings(**{**JUST_ENOUGH, setting: JUST_ENOUGH[setting] - 1})
    with pytest.raises(ConfigError, match=message) as error:
        check_capacity(settings, **WORKS)
    assert error.value.exit_code == 2


def test_more_checkpoints_retain_more() -> None:
    with pytest.raises(ConfigError, match=r"\(2 x 10 \+ 1\) batches"):
        check_capacity(StoreSettings(**JUST_ENOUGH), **WORKS, checkpoints_kept=2)


def test_a_file_smaller_than_the_capacities_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"map_bytes=2000000 is less than .* = 2000001"):
        StoreSettings(map_bytes=2_000_000, capacity_bytes=2_000_000, retained_capacity_bytes=1)
    StoreSettings(engine="memory", map_bytes=2_000_000)


def test_unknown_settings_are_refused() -> None:
    with pytest.raises(ValidationError, match="capacity_group"):
        StoreSettings(capacity_group=8)
