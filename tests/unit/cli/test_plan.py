"""`forebay plan` and `forebay simulate`: what scripts read, and one clear line for what cannot be."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest

from forebay.config import load_config
from forebay.planner.profile import Profile, write_profile
from tests.unit.cli.support import forebay
from tests.unit.planner.profiles import environment, profile

SMALL = ("--set", "groups=2", "--set", "group_size=2", "--set", "steps=20")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "profile.json"
    write_profile(path, profile(trajectories=4))
    return path


def test_a_plan_has_the_keys_that_scripts_read(path: Path) -> None:
    code, text = forebay("plan", str(path), *SMALL, "--max-staleness", "4", "--json")
    assert code == 0
    found = json.loads(text.splitlines()[-1])  # progress goes to stderr
    assert found["reached"] and found["busy"] >= 0.97 and found["max_staleness"] <= 4
    assert found["generators"] == found["actor_processes"] == 1
    assert {
        "episodes_in_flight",
        "credit",
        "on_stale",
        "goodput",
        "staleness_mean",
        "discarded",
        "reason",
    } <= (found.keys())


def test_a_plan_is_written_as_a_configuration_that_loads(path: Path, tmp_path: Path) -> None:
    base, planned = tmp_path / "run.toml", tmp_path / "planned.toml"
    base.write_text("[batching]\ngroups = 2\ngroup_size = 2\n")
    arguments = ("plan", str(path), "--config", str(base), "--max-staleness", "3", "--write", str(planned))
    assert forebay(*arguments, "--set", "steps=20")[0] == 0
    config = load_config(planned)
    assert config.staleness.max_staleness <= 3 and config.batching.groups == 2
    assert tomllib.loads(planned.read_text())["extends"] == str(base)
    code, text = forebay(*arguments)
    assert code == 2 and "planned.toml exists" in text


@pytest.mark.parametrize("option", ["--write", "--picture"])
def test_where_nothing_can_be_written_is_refused_before_the_search(path: Path, option: str) -> None:
    for place in ("/proc/x.toml", "/proc/none/x.toml", f"{path}/x.toml"):
        code, text = forebay("plan", str(path), *SMALL, option, place)
        assert code == 2 and text.startswith(f"cannot write {place} (got ") and "simulates" not in text


def test_settings_and_picture_are_two_files_whose_directory_is_made(path: Path, tmp_path: Path) -> None:
    written = tmp_path / "new" / "planned.toml"
    command = ("plan", str(path), *SMALL, "--max-staleness", "2", "--write", str(written), "--picture")
    code, text = forebay(*command, f"{tmp_path}/new/../new/planned.toml")
    assert code == 2 and "name the same file" in text and not written.exists()
    assert forebay(*command, str(tmp_path / "new" / "plan.svg"))[0] == 0
    assert sorted(each.name for each in written.parent.iterdir()) == ["plan.svg", "planned.toml"]


def test_a_simulated_run_says_how_busy_it_is(path: Path) -> None:
    code, text = forebay("simulate", str(path), *SMALL, "--set", "max_staleness=0", "--set", "poll_max_s=0")
    assert code == 0
    assert "busy 34.8%" in text  # 2 / (2 + 3 x 1.25)


def test_parts_measured_apart_are_merged(tmp_path: Path) -> None:
    whole = profile()
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    write_profile(first, Profile(environments={"tools": environment()}))
    write_profile(second, Profile(generator=whole.generator, learner=whole.learner))
    assert forebay("simulate", str(first), str(second), *SMALL, "--json")[0] == 0
    code, text = forebay("simulate", str(first), *SMALL)
    assert code == 2 and "generator, learner" in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("plan", "--price-generator", "-1"), "price of generator must be at least 0"),
        (("plan", "--busy", "2"), "busy is a fraction"),
        (("simulate", "--set", "staleness"), "not of the form key=value"),
        (("simulate", "--set", "stalness=2"), "no such setting: stalness"),
        (("simulate", "--set", "groups=0"), "groups: Input should be greater than or equal to 1, got 0"),
        (("simulate", "--set", "max_staleness=-1"), "than or equal to 0, got -1"),
    ],
)
def test_what_cannot_be_is_one_clear_line(path: Path, arguments: tuple[str, ...], message: str) -> None:
    code, text = forebay(arguments[0], str(path), *arguments[1:])
    assert code == 2
    assert message in text and "Traceback" not in text


def test_a_profile_of_another_version_is_refused(path: Path) -> None:
    path.write_text(path.read_text().replace('"format": 1', '"format": 7'))
    code, text = forebay("plan", str(path))
    assert code == 2 and "profile of another version" in text and "forebay audit" in text
