"""kill -9 of processes that work on a store alone, at named points and any time: a part of `make soak`."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from forebay.store import StoreSettings, open_store
from tests.system.store_accounts import account_for
from tests.system.store_fates import Role, plan_fates, points_of
from tests.system.store_kills import ENGINES, missing_program, run_kills
from tests.system.store_workers import CLOCK, read_log
from tests.unit.store.builders import RUN

SEED = 5
NUM_KILLS = 25


@pytest.mark.parametrize("engine", ENGINES)
def test_p2_kills_at_any_point_lose_nothing_and_repeat_nothing(tmp_path: Path, engine: str) -> None:
    """Each acknowledged trajectory is trained once, stored, or rejected by name; C42 and C52 under kills."""
    if missing := missing_program(engine):
        pytest.skip(missing)
    outcome = run_kills(engine, NUM_KILLS, SEED, tmp_path)
    assert outcome["wrong"] == [], outcome
    assert outcome["kills"] >= NUM_KILLS
    assert (outcome["lost"], outcome["repeated"]) == (0, 0)
    rejected = sum(outcome["rejected"].values())
    # What was committed is forgotten: the rest is at most two checkpoints' worth of batches.
    forgotten = outcome["accepted"] - rejected - outcome["stored"]
    assert outcome["acknowledged"] <= outcome["accepted"] == outcome["trained"] + rejected
    assert 0 <= forgotten < outcome["trained"]
    assert outcome["steps"] >= 3
    roles = {name.split()[0] for name in outcome["killed"]}
    assert roles >= {"learner", "putter", "settler"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a few kills left behind."""
    directory = tmp_path_factory.mktemp("finished")
    assert run_kills("lmdb-os", 4, SEED, directory)["wrong"] == []
    return directory


def account(directory: Path, **changes: Any) -> tuple[dict[str, Any], list[str]]:
    store = open_store(StoreSettings(path=directory / "store", durability="os", **changes), RUN, CLOCK)
    try:
        return account_for(store, directory)
    finally:
        store.close()


def rewrite(log: Path, change: Callable[[list[dict[str, Any]]], None]) -> None:
    lines = read_log(log)
    change(lines)
    log.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))


def of_kind(lines: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["kind"] == kind]


def forge_a_receipt(lines: list[dict[str, Any]]) -> None:
    lines.append({"kind": "put", "name": "g0.0.0.1", "receipt": "accepted"})


def forge_a_digest(lines: list[dict[str, Any]]) -> None:
    for line in of_kind(lines, "will"):
        line["digest"] = "0" * 16


def repeat_a_trajectory(lines: list[dict[str, Any]]) -> None:
    first, second = (of_kind(lines, "trained")[i] for i in (0, 1))
    second["trajectories"] |= first["trajectories"]


def lose_a_trajectory(lines: list[dict[str, Any]]) -> None:
    of_kind(lines, "trained")[0]["trajectories"].popitem()


def reverse_the_versions(lines: list[dict[str, Any]]) -> None:
    first, *_, last = of_kind(lines, "published")
    first["version"], last["version"] = last["version"], first["version"]


def change_the_weights(lines: list[dict[str, Any]]) -> None:
    of_kind(lines, "done")[-1]["weights"] = "0" * 32


@pytest.mark.parametrize(
    ("log", "change", "problem"),
    [
        ("putter", forge_a_receipt, "g0.0.0.1"),
        ("putter", forge_a_digest, "is not what was put"),
        ("learner", repeat_a_trajectory, "was trained 2 times"),
        ("learner", lose_a_trajectory, "can be found"),
        ("learner", reverse_the_versions, "published versions went back"),
        ("learner", change_the_weights, "makes other weights"),
    ],
)
def test_the_accounts_notice(
    finished: Path, tmp_path: Path, log: str, change: Callable[[list[dict[str, Any]]], None], problem: str
) -> None:
    directory = tmp_path / "copy"
    shutil.copytree(finished, directory)
    assert account(directory)[1] == []
    rewrite(directory / f"{log}.log", change)
    assert any(problem in line for line in account(directory)[1])


@pytest.mark.parametrize("role", get_args(Role))
def test_the_plan_follows_from_the_seed_and_visits_every_point(role: Role) -> None:
    def fates(seed: int) -> list[Any]:
        return list(itertools.islice(plan_fates(role, seed), 200))

    assert fates(1) == fates(1) != fates(2)
    assert {(fate.verb, fate.moment) for fate in fates(1) if fate.verb} == set(points_of(role))
    assert any(not fate.verb for fate in fates(1))
