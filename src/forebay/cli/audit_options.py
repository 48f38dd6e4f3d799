"""Which options of an audit are looked at by which of its parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from forebay.cli.audit_parts import PART_NAMES, PartName
from forebay.errors import ConfigError

_ENVIRONMENT: Final[tuple[PartName, ...]] = ("environment",)
_GENERATOR: Final[tuple[PartName, ...]] = ("generator",)
# By the name of its parameter; what is not here concerns the files and is always looked at.
_LOOKED_AT_BY: Final[Mapping[str, tuple[PartName, ...]]] = {
    "part": PART_NAMES,
    "environment": _ENVIRONMENT,
    "concurrency": _ENVIRONMENT,
    "duration": PART_NAMES,
    "policy": _ENVIRONMENT,
    "action": _ENVIRONMENT,
    "action_length": _ENVIRONMENT,
    "generator": ("generator", "weights"),
    "token_env": _GENERATOR,
    "requests": _GENERATOR,
    "prompt_tokens": _GENERATOR,
    "answer_tokens": _GENERATOR,
    "json": PART_NAMES,
}
_SPELLED: Final = {"duration": "seconds"}


def refuse_unused(given: Iterable[str], measured: Sequence[PartName], *, is_address: bool = False) -> None:
    """Refuse an option that nothing would look at, rather than to measure something else than was meant.

    Args:
        given: Parameters of the command that were given a value.
        measured: Parts that are measured; none where profiles are only merged.
        is_address: Whether the target is a generator already.

    Raises:
        ConfigError: There is one; with the parts that look at it.

    Example:
        >>> refuse_unused(["token_env", "out"], ["generator"])
    """
    for name in given:
        parts = _LOOKED_AT_BY.get(name)
        if parts is None or (set(parts) & set(measured) and not (is_address and name == "generator")):
            continue
        option = f"--{_SPELLED.get(name, name).replace('_', '-')}"
        raise ConfigError(
            f"nothing that is measured looks at {option}",
            got=f"a measurement of {', '.join(measured) or 'nothing'}",
            limit=", ".join(parts) + (" of a TOML file" if is_address else ""),
            remedy=f"Leave out {option}, or choose another target or --part.",
        )
