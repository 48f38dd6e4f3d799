"""`profile.json`: what was measured of each part of a run, where and how often.

Every part is optional and may be measured on the machine where it will run; files with different parts are
merged. A planner says which part it misses.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from forebay.errors import ConfigError
from forebay.planner.distribution import Distribution, check_distribution
from forebay.planner.profile_records import (
    EnvironmentLevel,
    EnvironmentProfile,
    GeneratorLevel,
    GeneratorProfile,
    LearnerBucket,
    LearnerLevel,
    LearnerProfile,
    Origin,
    PackedLevel,
    StoreProfile,
    Traffic,
    WeightsProfile,
)
from forebay.telemetry.files import write_atomically

__all__ = [
    "FORMAT",
    "PARTS",
    "EnvironmentLevel",
    "EnvironmentProfile",
    "GeneratorLevel",
    "GeneratorProfile",
    "LearnerBucket",
    "LearnerLevel",
    "LearnerProfile",
    "Origin",
    "PackedLevel",
    "Profile",
    "StoreProfile",
    "Traffic",
    "WeightsProfile",
    "check_profile",
    "conflicts",
    "merge_profiles",
    "read_profile",
    "require",
    "write_profile",
]

FORMAT: Final = 1
PARTS: Final = ("environments", "generator", "learner", "store", "weights")
_MEASURE: Final = "forebay audit"
_NUMBERS: Final = re.compile(r"\[\s+([-+.,\deE\s]+?)\s+\]")
_WIDTH: Final = 110


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that was measured.

    Args:
        environments: By name.
        generator: One generator.
        learner: The learner.
        store: The store.
        weights: Weights on their way.
        format: The version of this layout.
    """

    environments: dict[str, EnvironmentProfile] = {}
    generator: GeneratorProfile | None = None
    learner: LearnerProfile | None = None
    store: StoreProfile | None = None
    weights: WeightsProfile | None = None
    format: int = FORMAT

    @property
    def parts(self) -> tuple[str, ...]:
        """The names of the parts that it has."""
        return tuple(part for part in PARTS if getattr(self, part))


def read_profile(path: Path) -> Profile:
    """Return a profile.

    Raises:
        ConfigError: The file is missing, is of another format, or holds what cannot have been measured.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"no profile at {path}", remedy=f"Measure one: {_MEASURE}.") from None
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from None
    profile = _decoded(data, str(path))
    check_profile(profile, str(path))
    return profile


def write_profile(path: Path, profile: Profile) -> None:
    """Write a profile, atomically and for people too: a key a line, and measured values side by side.

    Raises:
        ConfigError: It holds what `read_profile` would refuse.
    """
    check_profile(profile, str(path))
    indented = msgspec.json.format(msgspec.json.encode(profile), indent=1).decode()
    write_atomically(path, _NUMBERS.sub(_side_by_side, indented).encode() + b"\n")


def _side_by_side(numbers: re.Match[str]) -> str:
    return f"[{textwrap.fill(' '.join(numbers[1].split()), _WIDTH)}]"


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """Return the parts of several profiles; of a part or an environment in more than one, the last counts."""
    environments: dict[str, EnvironmentProfile] = {}
    for profile in profiles:
        environments |= profile.environments
    rest = {part: _last(getattr(profile, part) for profile in profiles) for part in PARTS[1:]}
    return Profile(environments=environments, **rest)


def conflicts(profiles: Sequence[Profile]) -> list[str]:
    """Return the names of what more than one profile holds, such as `learner` or `environments.web`."""
    held = Counter(name for profile in profiles for name in _held(profile))
    return [name for name, count in held.items() if count > 1]


def _held(profile: Profile) -> list[str]:
    machines = [part for part in profile.parts if part != "environments"]
    return [*(f"environments.{name}" for name in profile.environments), *machines]


def require(profile: Profile, parts: Iterable[str], what: str) -> None:
    """Refuse a profile without a part.

    Args:
        profile: The profile.
        parts: Names of parts.
        what: Who wants them, for the message.

    Raises:
        ConfigError: A part is missing.
    """
    missing = [part for part in parts if part not in profile.parts]
    if missing:
        raise ConfigError(
            f"{what} needs parts that the profile does not have: {', '.join(missing)}",
            got=", ".join(profile.parts) or "no parts",
            remedy=f"{_MEASURE} CONFIG --part PART measures it; name all files: they are merged.",
        )


def check_profile(profile: Profile, where: str) -> None:
    """Refuse what no measurement can have given.

    Args:
        profile: The profile.
        where: What it is called in messages.

    Raises:
        ConfigError: With the name of the first such number.
    """
    for name, found in _walk(profile, where):
        if isinstance(found, Distribution):
            check_distribution(found, name)
        elif isinstance(found, float) and not (math.isfinite(found) and found >= 0.0):
            raise ConfigError(f"{name} is not a finite number of at least 0", got=found)
        elif isinstance(found, int) and found < 0:
            raise ConfigError(f"{name} is negative", got=found)
    for name, environment in profile.environments.items():
        _check_environment(environment, f"{where}: environments.{name}")
    if profile.generator is not None:
        _check_levels([level.requests for level in profile.generator.levels], f"{where}: generator.levels")
        if profile.generator.slots < 1:
            raise ConfigError(f"{where}: generator.slots is not positive", got=profile.generator.slots)
    if profile.learner is not None:
        _check_learner(profile.learner, f"{where}: learner")


def _check_learner(learner: LearnerProfile, where: str) -> None:
    _check_levels([level.trajectories for level in learner.levels], f"{where}.levels")
    if learner.packed:
        _check_levels([level.slots for level in learner.packed], f"{where}.packed")
    for name, levels in (("levels", learner.levels), ("packed", learner.packed)):
        if not all(level.step_s.mean > 0.0 for level in levels):
            raise ConfigError(f"{where}.{name} has a step that takes no time")
    if any(bucket.rows < 1 or bucket.length < 2 for bucket in learner.buckets):
        raise ConfigError(f"{where}.buckets has a shape without room for a sequence")


def _check_environment(environment: EnvironmentProfile, where: str) -> None:
    if environment.num_episodes < 1 or environment.num_errors >= environment.num_episodes:
        raise ConfigError(
            f"{where} has no episode that ended well",
            got=f"{environment.num_errors} errors in {environment.num_episodes} episodes",
            remedy="Mend the environment first: forebay env check.",
        )
    if environment.turns.values[0] < 1.0:
        raise ConfigError(f"{where}.turns: an episode has at least one turn", got=environment.turns.values[0])
    if not environment.weight > 0.0 or environment.concurrency < 1:
        raise ConfigError(
            f"{where} needs a positive weight and concurrency",
            got=(environment.weight, environment.concurrency),
        )


def _check_levels(loads: Sequence[int], where: str) -> None:
    if not loads or list(loads) != sorted(set(loads)) or loads[0] < 1:
        raise ConfigError(f"{where} must be at least one, by ascending load from 1", got=list(loads))


def _decoded(data: bytes, where: str) -> Profile:
    try:
        found = msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        remedy = None
        if b"Infinity" in data or b"NaN" in data:
            remedy = "Infinity and NaN are no JSON: a time whose mean is infinite was not measured."
        raise ConfigError(f"{where} is no JSON object: {error}", remedy=remedy) from None
    if found.get("format") != FORMAT:
        raise ConfigError(
            f"{where} is a profile of another version, or no profile",
            got=f"format {found.get('format')}",
            limit=f"format {FORMAT}",
            remedy=f"Measure it again with this version: {_MEASURE}.",
        )
    try:
        return msgspec.convert(found, type=Profile)
    except msgspec.ValidationError as error:
        raise ConfigError(
            f"{where} is not a profile: {error}",
            remedy="A null where a number belongs was not finite when it was written."
            if "`null`" in str(error)
            else None,
        ) from None


def _walk(found: object, where: str) -> Iterator[tuple[str, object]]:
    """Yield every distribution and every other number, with its name."""
    if isinstance(found, Distribution) or (isinstance(found, int | float) and not isinstance(found, bool)):
        yield where, found
    elif isinstance(found, msgspec.Struct):
        for name in found.__struct_fields__:
            yield from _walk(
                getattr(found, name), f"{where}: {name}" if ": " not in where else f"{where}.{name}"
            )
    elif isinstance(found, Mapping):
        for name, value in found.items():
            yield from _walk(value, f"{where}.{name}")
    elif isinstance(found, tuple):
        for index, value in enumerate(found):
            yield from _walk(value, f"{where}[{index}]")


def _last(found: Iterator[Any]) -> Any:
    return next((part for part in reversed(list(found)) if part is not None), None)
