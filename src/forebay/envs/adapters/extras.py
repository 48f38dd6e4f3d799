"""Optional packages, and names in them, with an explanation when there are none."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
from collections.abc import Iterable, Iterator
from typing import Any, Final

from forebay.errors import ConfigError

# Tasks of two seeds of the task generator never share an episode's seed.
_SEEDS_PER_GENERATOR: Final = 10_000_000
_MAX_SEED: Final = 2**31 - 1


def optional_module(name: str, extra: str) -> Any:
    """Import a package that an extra installs.

    Args:
        name: The package.
        extra: The extra of forebay that has it.

    Raises:
        ConfigError: It is not installed; the message names the extra.
    """
    if importlib.util.find_spec(name) is None:
        raise ConfigError(
            f"{name} is not installed", remedy=f"Install the extra: pip install 'forebay[{extra}]'"
        )
    return importlib.import_module(name)


def unknown_name(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return an error that names the nearest known names.

    Args:
        what: What the name is of, for instance `a Gymnasium environment`.
        name: What was asked for.
        known: What there is.

    Example:
        >>> print(unknown_name("a fruit", "aple", ["apple", "pear"]))
        there is no fruit called 'aple'. Did you mean apple?
    """
    spellings = {candidate.casefold(): candidate for candidate in known}
    near = difflib.get_close_matches(name.casefold(), spellings, 2)
    meant = " or ".join(spellings[match] for match in near)
    kind = what.partition(" ")[2]
    return ConfigError(
        f"there is no {kind} called {name!r}",
        remedy=f"Did you mean {meant}?"
        if meant
        else f"There are {len(spellings)}, none with a name like that.",
    )


def seeded_tasks(num_tasks: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield tasks that are nothing but a seed, each a different one.

    Args:
        num_tasks: How many.
        seed: Same seed: same tasks; another seed: other ones.

    Raises:
        ConfigError: Seeds would repeat.

    Example:
        >>> list(seeded_tasks(1, 3))
        [{'task_id': 'seed-30000000', 'payload': {'seed': 30000000}}]
    """
    if not (num_tasks <= _SEEDS_PER_GENERATOR and (seed + 1) * _SEEDS_PER_GENERATOR <= _MAX_SEED):
        raise ConfigError(
            "seeds of tasks would repeat",
            got=f"num_tasks={num_tasks}, tasks_seed={seed}",
            limit=f"num_tasks <= {_SEEDS_PER_GENERATOR}, tasks_seed < {_MAX_SEED // _SEEDS_PER_GENERATOR}",
        )
    for number in range(seed * _SEEDS_PER_GENERATOR, seed * _SEEDS_PER_GENERATOR + num_tasks):
        yield {"task_id": f"seed-{number}", "payload": {"seed": number}}
