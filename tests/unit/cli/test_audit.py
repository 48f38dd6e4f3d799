from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.audit_advice import advise
from forebay.cli.auditing import failure_of, parse_concurrency
from forebay.errors import ConfigError
from forebay.planner.audit import Audit, conclude
from forebay.planner.profile import read_profile
from tests.unit.cli.support import forebay
from tests.unit.planner.test_audit import episode, level, slots

ROOT = Path(__file__).parents[3]
PROBED = "tests.unit.planner.probed"
PATIENCE_S = 60.0
ALONE = ("--part", "environment")


def configured(directory: Path, name: str, **more: Any) -> Path:
    """Write a configuration with one of the environments of the tests."""
    path = directory / "run.toml"
    lines = [f"{key} = {json.dumps(value).replace(': ', ' = ')}" for key, value in more.items()]
    path.write_text("\n".join(["[environment.e]", f'entrypoint = "{PROBED}:{name}"', *lines]))
    return path


def child(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "forebay", "audit", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )


def concluded(*levels: Any, **more: Any) -> Audit:
    return conclude("e", "text", levels, own_call_s=1e-4, **more)


@pytest.mark.parametrize("text", ["", "4,1", "1,1", "0,4", "1,x", "1,-4", "1.5", "1,,2", "99999999999"])
def test_levels_that_do_not_ascend_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="ascending whole numbers"):
        parse_concurrency(text)


def test_too_many_at_a_time_are_refused() -> None:
    with pytest.raises(ConfigError, match="limit 4096"):
        parse_concurrency("1,5000")


def test_what_is_no_environment_is_refused() -> None:
    assert forebay("audit", "not an entrypoint") == (
        2,
        "'not an entrypoint' is no environment. Write a TOML file, module:Class, or a built-in name.",
    )
    assert "names a section" in forebay("audit", "calculator", "--environment", "e").text
    assert forebay("audit", "missing.toml").code == 2
    code, text = forebay("audit", "calculator", "--policy", "clever")
    assert code == 2 and "clever" in text


def test_a_profile_that_cannot_be_added_to_is_refused_before_measuring(tmp_path: Path) -> None:
    (tmp_path / "profile.json").write_text('{"format": 99}')
    code, text = forebay("audit", "calculator", "--seconds", "1000", "--out", str(tmp_path / "profile.json"))
    assert code == 2 and "another version" in text


@pytest.mark.parametrize("place", ["/proc/p.json", "/proc/none/p.json", "FILE/p.json", "FILE/../"])
def test_a_profile_that_cannot_be_written_is_refused_before_measuring(tmp_path: Path, place: str) -> None:
    (tmp_path / "calc.toml").write_text("")
    out = place.replace("FILE", str(tmp_path / "calc.toml"))
    code, text = forebay("audit", "calculator", "--seconds", "1000", "--out", out)
    assert code == 2 and len(text.splitlines()) == 1 and "at a time" not in text
    assert [each.name for each in tmp_path.iterdir()] == ["calc.toml"]


def test_an_environment_is_measured_and_added_to_the_profile(tmp_path: Path) -> None:
    out = tmp_path / "profile.json"
    fast = configured(tmp_path, "Steady", kwargs={"step_s": 0.01})
    common = ("--concurrency", "1,2", "--seconds", "0.6", "--out", str(out))
    code, text = forebay("audit", str(fast), *ALONE, *common, "--json")
    assert code == 0
    found = json.loads(text[text.index("{") :])
    assert found["interrupted"] is False
    (entry,) = found["environments"]
    assert (entry["name"], [each["concurrency"] for each in entry["levels"]]) == ("e", [1, 2])
    assert entry["turns"]["mean"] == 3.0
    assert entry["levels"][0]["step_s"]["p50"] >= 0.01
    assert entry["actions"] == "random text of 64 characters"
    assert entry["advice"]
    code, text = forebay("audit", "calculator", *common)
    assert code == 0, text
    assert "calculator, answered with its own demonstrations" in text
    profile = read_profile(out)
    assert set(profile.environments) == {"e", "calculator"}
    assert profile.environments["e"].turns.values == (3.0,) * len(profile.environments["e"].turns.values)
    assert profile.environments["e"].origin.how.startswith(
        f"forebay audit {fast} --part environment --concurrency 1,2 --seconds 0.6"
    )


def test_an_environment_that_always_fails_ends_with_4(tmp_path: Path) -> None:
    path = configured(tmp_path, "Broken")
    out = tmp_path / "p.json"
    code, text = forebay(
        "audit", str(path), *ALONE, "--concurrency", "8", "--seconds", "30", "--out", str(out)
    )
    assert code == 4
    assert re.match(
        r"environment e: all \d+ episodes failed; reset: OSError: no tool server at port 7\. ", text
    )
    assert not out.exists()


def test_an_environment_that_hangs_is_measured_beside_its_timeouts(tmp_path: Path) -> None:
    path = configured(tmp_path, "HangingNow", kwargs={"step_s": 0.01}, step_timeout_s=0.2)
    code, text = forebay("audit", str(path), *ALONE, "--concurrency", "4", "--seconds", "0.5", "--json")
    (entry,) = json.loads(text[text.index("{") :])["environments"]
    assert code == 0
    assert set(entry["details"]) == {"step: timeout"}
    assert entry["levels"][0]["num_episodes"] > entry["levels"][0]["num_timeouts"] > 0


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    path = configured(tmp_path, "Steady", kwargs={"step_s": 0.01, "directory": str(tmp_path)})
    process = child(
        str(path), *ALONE, "--concurrency", "2", "--seconds", "500", "--out", str(tmp_path / "p.json")
    )
    try:
        patience_s = time.monotonic() + PATIENCE_S
        while not (tmp_path / "closed").exists() and time.monotonic() < patience_s:
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 130, err
    assert "(interrupted)" in out and "\ninterrupted: the figures are" in out
    assert read_profile(tmp_path / "p.json").environments["e"].num_episodes > 0


def test_an_environment_that_blocks_for_good_is_named_with_its_line(tmp_path: Path) -> None:
    process = child(str(configured(tmp_path, "Stuck", step_timeout_s=0.3)), *ALONE, "--seconds", "60")
    try:
        _, err = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 4
    assert "has blocked the event loop" in err
    assert "probed.py:" in err and "time.sleep(600.0)" in err
    assert "Set blocking=true" in err


def test_an_audit_needs_no_jax() -> None:
    code = "import sys, forebay.cli.audit; print('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"


def test_a_knee_is_told_in_words_with_what_to_change() -> None:
    text = "\n".join(advise(concluded(slots(1), slots(2), slots(4), slots(8, step_s=2.2))))
    assert "Alone, a step takes 1.00 s as a rule and 1 in 20 more than 1.00 s" in text
    assert "More than 4 at a time gain nothing: from 4 to 8, answers go from 4.77 to 4.93/s" in text
    assert "the slowest twentieth of the steps goes from 1.00 s to 2.20 s" in text
    assert "Run at most 4 at a time" in text
    assert "The exact place lies between 2 and 8" in text
    assert "what limits is behind the environment" in text
    assert "75.4 % of the draws find the limit at 4" in text
    assert "the same time" not in text


def test_more_at_a_time_are_recommended_while_they_gain() -> None:
    text = "\n".join(advise(concluded(slots(1), slots(16))))
    assert "Up to 16 at a time, more episodes do more work: each does 100.0 %" in text
    assert "no limit was reached" in text
    assert "Every step took the same time" in text
    assert "gain nothing" not in text


def test_a_rough_measurement_does_not_claim_that_nothing_disturbs() -> None:
    now_and_then = [episode(began_s) for began_s in (0.0, 2.5, 5.0, 14.0, 16.5)]
    rough = concluded(slots(1), level(2, [*slots(1).episodes, *now_and_then]))
    assert rough.knee.kind == "scales"
    assert "too rough to tell whether they disturb one another" in "\n".join(advise(rough))


def test_refused_and_failed_calls_are_counted_by_level_and_harmless() -> None:
    failing = episode(ending="error")
    refused = type(failing)(
        began_s=0.0,
        ended_s=1.0,
        calls=failing.calls,
        own_s=0.0,
        ending="error",
        error="step: HTTPError",
        detail="429 too many requests\x1b[31m",
    )
    text = "\n".join(advise(concluded(slots(1), slots(2), level(4, [*slots(2).episodes, refused]))))
    assert "From 4 at a time on, the service behind it refuses calls for coming too fast" in text
    assert "Failed, step: HTTPError: 1 with 4 at a time." in text
    assert "\x1b" not in text


def test_only_an_audit_without_a_good_episode_fails() -> None:
    assert failure_of(concluded(slots(1))) is None
    cut = concluded(level(1, [episode(ending="cut")]))
    assert "no episode ended in time (got 1 given up)" in str(failure_of(cut))
    stopped = concluded(level(1, [episode(ending="cut")]), interrupted=True)
    assert failure_of(stopped) is None


def test_the_example_profile_can_be_read() -> None:
    profile = read_profile(ROOT / "examples" / "profile.json")
    assert profile.parts == ("environments", "generator", "learner", "store", "weights")
    assert profile.generator is not None and set(profile.generator.traffic) == {"calculator"}
    assert profile.learner is not None and profile.learner.levels[-1].trajectories == 128
    found = profile.environments["calculator"]
    assert [each.concurrency for each in found.levels] == [1, 4, 16, 64]
    assert found.origin.how.startswith("forebay audit examples/calculator.toml")
    # One to three operations and the answer; a second a step, eight in one of twenty.
    assert 2.5 < found.turns.mean < 3.5
    assert 0.8 < found.step_s.mean < 2.0
