from __future__ import annotations

import pytest

from forebay.envs.adapters.extras import optional_module, seeded_tasks, unknown_name
from forebay.errors import ConfigError


def test_a_missing_package_names_its_extra() -> None:
    with pytest.raises(ConfigError, match=r"no_such_package is not installed. .*'forebay\[envs-none\]'"):
        optional_module("no_such_package", "envs-none")
    assert optional_module("json", "envs-none").dumps([]) == "[]"


def test_near_names_are_offered_whatever_their_case() -> None:
    known = ["Blackjack-v1", "FrozenLake-v1", "FrozenLake8x8-v1"]
    assert "Did you mean FrozenLake-v1 or FrozenLake8x8-v1?" in str(
        unknown_name("a game", "frozen-lake-v1", known)
    )
    assert str(unknown_name("a game", "Chess", known)).endswith("There are 3, none with a name like that.")


def test_seeds_do_not_repeat() -> None:
    seeds = [task["payload"]["seed"] for seed in range(3) for task in seeded_tasks(100, seed)]
    assert len(set(seeds)) == 300
    assert max(task["payload"]["seed"] for task in seeded_tasks(5, 213)) < 2**31
    with pytest.raises(ConfigError, match="would repeat"):
        list(seeded_tasks(1, 214))
