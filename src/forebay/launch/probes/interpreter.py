"""Python and its packages: versions, extras, a second forebay on the path, text encoding."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

import forebay
from forebay.launch.probes.finding import Finding
from forebay.launch.probes.requirements import (
    Requirement,
    installed_version,
    requirements_of,
    unmet,
)

_DISTRIBUTION = "forebay"
_CLASSIFIER = "Programming Language :: Python :: 3."
_VERSION = re.compile(r"^__version__ = [\"'](.+)[\"']", re.MULTILINE)
# Extras for those who develop forebay, and for hardware that the devices probe speaks of.
_SILENT_EXTRAS = ("dev", "docs", "learner", "cuda", "tpu")
_SHOWN = ("jax", "numpy", "optax", "lmdb", "pydantic")


class PackageCopy(msgspec.Struct, frozen=True):
    """A place from which `import forebay` could come, and the version there."""

    path: str
    version: str


def look_at_python() -> list[Finding]:
    """Compare the interpreter with the versions that forebay is tested with."""
    version = platform.python_version()
    tested = tested_minors(_classifiers())
    if tested and sys.version_info[1] not in tested:
        versions = ", ".join(f"3.{minor}" for minor in tested)
        return [
            Finding("python", "warn", f"{version}; tested are {versions}", "PYTHON=python3.12 make setup")
        ]
    return [Finding("python", "ok", f"{version} at {sys.executable}")]


def tested_minors(classifiers: Sequence[str]) -> list[int]:
    """Return the minor versions of Python 3 that a distribution names.

    Example:
        >>> tested_minors(["Programming Language :: Python :: 3", "Programming Language :: Python :: 3.11"])
        [11]
    """
    return [int(line.removeprefix(_CLASSIFIER)) for line in classifiers if line.startswith(_CLASSIFIER)]


def look_at_copies(search_path: Sequence[str] | None = None) -> list[Finding]:
    """Look for a second forebay, which a process of the run could import instead of this one.

    Args:
        search_path: Directories to look in; by default the working directory, which `python -m` puts first,
            and `sys.path`.
    """
    copies = copies_on([str(Path.cwd()), *sys.path] if search_path is None else search_path)
    if len(copies) > 1:
        listed = ", ".join(f"{copy.version} in {copy.path}" for copy in copies)
        return [
            Finding(
                "forebay",
                "bad",
                f"two versions of the package: {listed}",
                "Keep one: pip uninstall forebay, or leave that directory and unset PYTHONPATH.",
            )
        ]
    recorded = installed_version(_DISTRIBUTION)
    if recorded not in (None, forebay.__version__):
        seen = f"{forebay.__version__}, but it was installed as {recorded}"
        return [Finding("forebay", "warn", seen, "Install it again: pip install -e .")]
    return [Finding("forebay", "ok", f"{forebay.__version__} in {copies[0].path}"), *_other_command()]


def copies_on(search_path: Sequence[str]) -> list[PackageCopy]:
    """Return every forebay that a search path leads to, the imported one first."""
    places = [Path(forebay.__file__).parent, *(Path(entry or ".") / "forebay" for entry in search_path)]
    found = {place.resolve(): _version_in(place) for place in places if (place / "__init__.py").is_file()}
    return [PackageCopy(str(path), version) for path, version in found.items()]


def look_at_packages() -> list[Finding]:
    """Compare the packages that learner, generator, actors and store need with what is installed."""
    needed = [item for item in requirements_of(_DISTRIBUTION) if item.extra in ("", "learner")]
    if not needed:
        return [Finding("packages", "warn", "forebay is not installed, only imported", "pip install -e .")]
    missing = unmet(needed)
    if missing:
        remedy = "make setup, or pip install 'forebay[learner]'"
        return [Finding("packages", "bad", "; ".join(missing), remedy)]
    return [Finding("packages", "ok", ", ".join(f"{name} {installed_version(name)}" for name in _SHOWN))]


def look_at_extras(requirements: Sequence[Requirement] | None = None) -> list[Finding]:
    """Say which optional packages are there, and how to install the others.

    Args:
        requirements: What forebay asks for; by default what its installation says.
    """
    findings = []
    requirements = requirements_of(_DISTRIBUTION) if requirements is None else requirements
    for extra in sorted({item.extra for item in requirements} - {"", *_SILENT_EXTRAS}):
        missing = unmet([item for item in requirements if item.extra == extra and item.name != _DISTRIBUTION])
        remedy = f"pip install 'forebay[{extra}]'" if missing else ""
        seen = ", ".join(missing) or "installed"
        findings.append(Finding(f"extra {extra}", "note" if missing else "ok", seen, remedy))
    return findings


def look_at_encoding(encodings: dict[str, str] | None = None) -> list[Finding]:
    """Check that file names and output may hold any character.

    Args:
        encodings: Encodings by what uses them; by default those of this process.
    """
    encodings = encodings or {
        "file names": sys.getfilesystemencoding(),
        "output": sys.stdout.encoding or "unknown",
    }
    other = [f"{use} {encoding}" for use, encoding in encodings.items() if not _is_utf8(encoding)]
    if other:
        return [Finding("encoding", "warn", ", ".join(other), "export LC_ALL=C.UTF-8 PYTHONUTF8=1")]
    return [Finding("encoding", "ok", "UTF-8")]


def _is_utf8(encoding: str) -> bool:
    return encoding.lower().replace("-", "").replace("_", "") == "utf8"


def _classifiers() -> list[str]:
    try:
        return importlib.metadata.metadata(_DISTRIBUTION).get_all("Classifier") or []
    except importlib.metadata.PackageNotFoundError:
        return []


def _version_in(package: Path) -> str:
    match = _VERSION.search((package / "__init__.py").read_text("utf-8", errors="replace"))
    return match[1] if match else "unknown version"


def _other_command() -> list[Finding]:
    """Warn if the shell would run another environment's forebay."""
    command = shutil.which("forebay")
    mine = Path(sys.executable).parent
    if command is None or Path(command).parent.resolve() == mine.resolve():
        return []
    seen = f"the shell runs {command}, this is {mine / 'forebay'}"
    return [Finding("command", "warn", seen, f"Put {mine} first in PATH, or name the one you mean.")]
