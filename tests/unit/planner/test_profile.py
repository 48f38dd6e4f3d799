"""Profiles: what is written is read back, and what cannot have been measured is refused with its name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from forebay.errors import ConfigError
from forebay.planner.distribution import Distribution, constant, pooled, sampled
from forebay.planner.profile import (
    EnvironmentProfile,
    Profile,
    conflicts,
    merge_profiles,
    read_profile,
    require,
    write_profile,
)
from tests.unit.planner.profiles import environment, profile


def test_a_profile_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    written = profile(step_s=sampled([0.5, 1.5, 4.0]), weights_s=0.2, store=True)
    write_profile(path, written)
    assert read_profile(path) == written
    text = path.read_text()
    assert '\n "format": 1' in text and '"values": [0.5, 1.5, 4.0]\n' in text


def test_parts_of_several_files_come_together_and_the_last_counts() -> None:
    whole = profile(store=True)
    learner_only = Profile(learner=profile(train_s=7.0).learner)
    other = Profile(environments={"games": environment()})
    merged = merge_profiles([whole, learner_only, other])
    assert sorted(merged.environments) == ["games", "tools"]
    assert merged.learner == learner_only.learner and merged.store == whole.store
    assert merged.parts == ("environments", "generator", "learner", "store")


def test_long_measurements_take_few_lines(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    written = profile(step_s=sampled([1e-6 * number for number in range(1000)]))
    write_profile(path, written)
    assert read_profile(path) == written
    assert len(path.read_text().splitlines()) < 300


def test_what_two_profiles_hold_is_a_conflict() -> None:
    whole = profile(store=True)
    other = Profile(environments={"games": environment()}, store=whole.store)
    assert conflicts([whole]) == [] and conflicts([whole, other]) == ["store"]
    assert conflicts([whole, Profile(environments={"tools": environment()})]) == ["environments.tools"]


def test_a_missing_part_is_named() -> None:
    with pytest.raises(ConfigError, match=r"needs parts .*: generator, learner \(got environments\)"):
        require(
            Profile(environments={"a": environment()}), ("environments", "generator", "learner"), "a plan"
        )


NO_TIME = {"num_samples": 1, "mean": 0.0, "values": [0.0]}
PACKED = {"slots": 64, "step_s": {"num_samples": 1, "mean": 1.0, "values": [1.0]}}


def _change(tree: dict[str, Any], path: str, value: Any) -> None:
    *parents, last = path.split("/")
    for name in parents:
        tree = tree[int(name)] if isinstance(tree, list) else tree[name]
    tree[last] = value


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ("format", 2, r"another version.*\(got format 2, limit format 1\)"),
        ("learner/levels/0/step_s/mean", None, "was not finite when it was written"),
        ("learner/levels/0/step_s/num_samples", 0, r"learner\.levels\[0\]\.step_s has 1 values of 0 samples"),
        ("environments/tools/step_s/mean", 9.0, r"tools\.step_s\.mean is not the mean of its values"),
        ("environments/tools/step_s/values", [2.0, 1.0, 0.0], "2 samples|ascending|3 values"),
        ("environments/tools/num_errors", 10, "no episode that ended well"),
        ("environments/tools/colour", "red", "unknown field `colour`"),
        ("learner/overhead_s/values", [-1.0], "at least 0"),
        ("generator/levels", [], "generator.levels must be at least one"),
        ("learner/full_tokens_per_s", -5.0, "full_tokens_per_s is not a finite number of at least 0"),
        ("learner/packed", [PACKED] * 2, r"learner\.packed must be at least one, by ascending load"),
        ("learner/packed", [PACKED | {"step_s": NO_TIME}], "packed has a step that takes no time"),
        ("learner/buckets", [{"rows": 0, "length": 64, "call_s": NO_TIME}], "a shape without room"),
    ],
)
def test_what_cannot_have_been_measured_is_refused(
    tmp_path: Path, place: str, value: Any, message: str
) -> None:
    tree = json.loads(msgspec.json.encode(profile()))
    _change(tree, place, value)
    path = tmp_path / "profile.json"
    path.write_text(json.dumps(tree))
    with pytest.raises(ConfigError, match=message):
        read_profile(path)


def test_an_infinite_mean_is_refused_as_it_is_written_and_as_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    endless = Distribution(num_samples=1, mean=math.inf, values=(math.inf,))
    with pytest.raises(ConfigError, match=r"step_s has a mean or a value that is not finite"):
        write_profile(path, profile(step_s=endless))
    path.write_text('{"format": 1, "environments": {"a": Infinity}}')
    with pytest.raises(ConfigError, match="Infinity and NaN are no JSON"):
        read_profile(path)


def test_a_file_that_is_not_there_or_no_json(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no profile at"):
        read_profile(tmp_path / "none.json")
    (tmp_path / "text.json").write_text("hello")
    with pytest.raises(ConfigError, match="is no JSON object"):
        read_profile(tmp_path / "text.json")


def test_samples_are_condensed_without_moving_the_mean() -> None:
    values = [float(number**3) for number in range(1, 1001)]
    found = sampled(values, limit=10)
    assert len(found.values) == 10 and found.num_samples == 1000
    assert sum(found.values) / 10 == pytest.approx(found.mean) == pytest.approx(sum(values) / 1000)


def test_pooled_measurements_weigh_by_their_samples() -> None:
    both = pooled([sampled([1.0] * 30), sampled([5.0] * 10)])
    assert both.num_samples == 40 and both.mean == 2.0
    assert constant(1.0).deviation == 0.0 and both.quantile(0.74) == 1.0 and both.quantile(0.76) == 5.0


def test_the_tail_index_of_a_pareto_distribution_is_its_exponent() -> None:
    """Values u ** (-1 / 1.5) at equal steps of u are a Pareto distribution of index 1.5."""
    found = sampled([(1.0 - (number + 0.5) / 1000) ** (-1.0 / 1.5) for number in range(1000)])
    assert found.tail_index() == pytest.approx(1.5, rel=0.1)
    assert constant(1.0).tail_index() is None


def test_the_error_rate_is_of_episodes() -> None:
    found: EnvironmentProfile = environment()
    assert msgspec.structs.replace(found, num_errors=2).error_rate == 0.2
