"""From measured parts to a planned fleet, by the product's own commands: audit, then plan."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.utilization_study.cells import Cell
from forebay.cli.comparison import CONFIG
from forebay.errors import PeerFailedError
from forebay.planner.plan import Plan
from forebay.planner.profile import Profile, read_profile, write_profile

# The plan leaves a little to chance, and to cores that are shared: 97 % is wanted of the run.
WANTED_BUSY: Final = 0.99
_PLAN_STEPS: Final = 60


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet, and the configuration that it makes.

    Args:
        plan: What `forebay plan` said.
        config: The file that it wrote, which extends the cell's.
    """

    plan: Plan
    config: Path


def measure_parts(path: Path, seconds_s: float) -> None:
    """Audit all parts but the environment.

    Args:
        path: Where the profile goes.
        seconds_s: Time of each part.

    Raises:
        PeerFailedError: The audit fails.
    """
    parts = [word for part in ("generator", "weights", "store", "learner") for word in ("--part", part)]
    _forebay("audit", str(CONFIG), *parts, "--seconds", f"{seconds_s:g}", "--out", str(path))


def plan_cell(cell: Cell, parts: Path, directory: Path) -> Planned:
    """Plan the fleet of a cell.

    Args:
        cell: The environment.
        parts: Profile of everything else.
        directory: Where its files go.

    Raises:
        PeerFailedError: The plan fails.
    """
    directory.mkdir(parents=True, exist_ok=True)
    machine = read_profile(parts)
    assert machine.generator is not None
    environment = Profile(environments={"calculator": cell.environment(machine.generator.origin)})
    profile, config = directory / "environment.json", directory / "cell.toml"
    planned = directory / "planned.toml"
    write_profile(profile, environment)
    config.write_text(cell.config())
    planned.unlink(missing_ok=True)
    settings = ("--set", f"steps={_PLAN_STEPS}")
    output = _forebay(
        *("plan", str(parts), str(profile), "--config", str(config), "--busy", str(WANTED_BUSY)),
        *(*settings, "--write", str(planned), "--json"),
    )
    return Planned(plan=msgspec.json.decode(output, type=Plan), config=planned)


def _forebay(*arguments: str) -> bytes:
    done = subprocess.run([sys.executable, "-m", "forebay", *arguments], stdout=subprocess.PIPE, check=False)
    if done.returncode:
        raise PeerFailedError(f"forebay {arguments[0]} ended with code {done.returncode}")
    return done.stdout
