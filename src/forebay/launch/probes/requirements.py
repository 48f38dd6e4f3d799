"""What the installed package says that it needs, and whether it is there. Nothing is imported to find out."""

from __future__ import annotations

import importlib.metadata
import re
from collections.abc import Sequence

import msgspec

_REQUIREMENT = re.compile(
    r"(?P<name>[A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*(?P<versions>[^;]*)(?:;(?P<marker>.*))?"
)
_EXTRA = re.compile(r"extra\s*==\s*[\"']([\w-]+)[\"']")
_BOUND = re.compile(r"(>=|<)\s*([\w.]+)")


class Requirement(msgspec.Struct, frozen=True):
    """A package that forebay needs, always or for one of its extras.

    Args:
        name: Of the distribution.
        versions: Bounds as written, `>=1,<2`.
        extra: The extra that asks for it; empty if it is always needed.
    """

    name: str
    versions: str
    extra: str


def parse_requirement(line: str) -> Requirement:
    """Read a line of a distribution's metadata; markers other than `extra` are not evaluated.

    Example:
        >>> parse_requirement('jax[cuda13]<0.11,>=0.10.2; extra == "cuda"')
        Requirement(name='jax', versions='<0.11,>=0.10.2', extra='cuda')
    """
    match = _REQUIREMENT.match(line)
    assert match is not None  # every line begins with a name
    extra = _EXTRA.search(match["marker"] or "")
    return Requirement(match["name"], match["versions"].strip(), extra[1] if extra else "")


def requirements_of(distribution: str) -> tuple[Requirement, ...]:
    """Return what an installed distribution asks for; nothing if it is not installed."""
    try:
        lines = importlib.metadata.requires(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        lines = []
    return tuple(map(parse_requirement, lines))


def unmet(requirements: Sequence[Requirement]) -> list[str]:
    """Return what is missing or of another version, each with what is there."""
    found = {item.name: installed_version(item.name) for item in requirements}
    return [
        f"{item.name} {found[item.name] or 'missing'}{f' (needs {item.versions})' if item.versions else ''}"
        for item in requirements
        if not is_within(found[item.name], item.versions)
    ]


def installed_version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def is_within(version: str | None, bounds: str) -> bool:
    """Return whether a version satisfies `>=` and `<` bounds; other bounds are taken as satisfied.

    Example:
        >>> is_within("0.10.2", ">=0.10.2,<0.11"), is_within("0.11.0", "<0.11"), is_within(None, "")
        (True, False, False)
    """
    if version is None:
        return False
    mine = _numbers(version)
    return all(
        mine >= _numbers(bound) if sign == ">=" else mine < _numbers(bound)
        for sign, bound in _BOUND.findall(bounds)
    )


def _numbers(version: str) -> tuple[int, ...]:
    numbers = [int(number) for number in re.findall(r"\d+", re.split(r"[a-z+-]", version)[0])]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)
