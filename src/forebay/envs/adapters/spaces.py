"""Spaces of Gymnasium as text: what is observed is written, what is said is read, strictly.

| space | text |
|---|---|
| Discrete | `3`, or a name where names are given |
| MultiDiscrete, MultiBinary | `3 0 1`: as many whole numbers as there are entries, row by row |
| Box | `0.25 -1.5`: as many numbers as there are entries, row by row, each within its bounds |
| Text | the text itself |
| Tuple | `3, 0.25 -1.5`: parts with commas between |
| Dict | `key: 3, other: 0.25`: every key once; read in any order |
| a Tuple or Dict in another one | in parentheses |

Any other space is refused, and so is one with more numbers than a prompt should hold.
"""

from __future__ import annotations

import importlib
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

from forebay.errors import ConfigError

MAX_NUMBERS: Final = 64
_WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
_REAL: Final = re.compile(r"[+-]?([0-9]{1,18}\.?[0-9]{0,32}|\.[0-9]{1,32})(e[+-]?[0-9]{1,3})?", re.IGNORECASE)
_CHARACTERS: Final = "0123456789abcdefghijklmnopqrstuvwxyz"
_SEPARATORS: Final = frozenset(",:() \t\n\r")


class NotInSpaceError(ValueError):
    """A text that is no member of a space."""


class SpaceText(Protocol):
    """A space as text.

    Attributes:
        hint: What a text of it looks like, in a few words.
    """

    hint: str

    def write(self, value: Any) -> str:
        """Return a member as text."""
        ...

    def read(self, text: str) -> Any:
        """Return the member that a text means.

        Raises:
            NotInSpaceError: It means none.
        """
        ...


def space_text(
    space: Any,
    *,
    names: Sequence[str] = (),
    digits: int = 4,
    max_numbers: int = MAX_NUMBERS,
    short: bool = False,
) -> SpaceText:
    """Choose how a space is written and read.

    Args:
        space: A `gymnasium.spaces.Space`.
        names: Names of the members of a Discrete space, or of the parts of a Tuple.
        digits: Significant digits of numbers that are written.
        max_numbers: Most numbers of an array; an image is no text.
        short: Whether a member of a Discrete space of at most 36 is one character: 0 to 9, then a to z.

    Raises:
        ConfigError: There is no clear text for it; the message names the space.
    """
    spaces = importlib.import_module("gymnasium.spaces")

    def part(child: Any, child_names: Sequence[str] = ()) -> SpaceText:
        return space_text(child, names=child_names, digits=digits, max_numbers=max_numbers, short=short)

    match space:
        case spaces.Discrete():
            return _Choice(space, names or (_CHARACTERS[: space.n] if short and space.n <= 36 else ()))
        case spaces.Text():
            return _Free(space)
        case spaces.Box() | spaces.MultiDiscrete() | spaces.MultiBinary():
            return _Numbers(space, digits, max_numbers)
        case spaces.Dict() if space.spaces:
            parts = {str(key): part(child) for key, child in space.spaces.items()}
            return _Parts(space, parts, keys=list(space.spaces), named=True)
        case spaces.Tuple() if space.spaces:
            _check_names(names, len(space.spaces), space)
            keys = names or [str(index) for index in range(len(space.spaces))]
            children = dict(zip(keys, map(part, space.spaces), strict=True))
            return _Parts(space, children, keys=list(range(len(space.spaces))), named=bool(names))
    raise ConfigError(
        "a space has no clear text",
        got=f"{space!r:.200}",
        limit="Discrete, MultiDiscrete, MultiBinary, Box, Text, and Dict or Tuple of them",
        remedy="Write an environment of your own around it.",
    )


def readable(text: SpaceText) -> SpaceText:
    """Return a space's text if it can be read without doubt.

    Raises:
        ConfigError: A Text inside a Dict or Tuple, or a key, may hold what separates parts.
    """
    if isinstance(text, _Parts):
        text.check_readable()
    return text


class _Choice:
    def __init__(self, space: Any, names: Sequence[str]) -> None:
        self._space = space
        self._first = int(space.start)
        _check_names(names, int(space.n), space)
        self._names = list(names)
        self._numbers = {name.strip().casefold(): self._first + i for i, name in enumerate(names)}
        if len(self._numbers) != len(names):
            raise ConfigError("names of actions repeat", got=list(names))
        last = self._first + int(space.n) - 1
        self.hint = " or ".join(names) if names else f"a number from {self._first} to {last}"

    def write(self, value: Any) -> str:
        return self._names[int(value) - self._first] if self._names else str(int(value))

    def read(self, text: str) -> Any:
        said = text.strip()
        number = self._numbers.get(said.casefold())
        if number is None and _WHOLE.fullmatch(said):
            number = int(said)
        if number is None or not self._space.contains(number):
            raise NotInSpaceError(self.hint)
        return number


class _Free:
    def __init__(self, space: Any) -> None:
        self.space = space
        self.hint = f"a text of {space.min_length} to {space.max_length} characters"

    def write(self, value: Any) -> str:
        return str(value)

    def read(self, text: str) -> Any:
        if not self.space.contains(text):
            raise NotInSpaceError(self.hint)
        return text


class _Numbers:
    def __init__(self, space: Any, digits: int, max_numbers: int) -> None:
        self._space = space
        self._digits = digits
        self._count = math.prod(space.shape)
        if not 0 < self._count <= max_numbers:
            raise ConfigError(
                f"a space with {self._count} numbers is no text",
                got=f"{space!r:.200}",
                limit=f"1 to {max_numbers}",
                remedy="Raise max_numbers, or write an environment of your own around it.",
            )
        self._whole = space.dtype.kind != "f"
        kind = "whole number" if self._whole else "number"
        self.hint = f"{self._count} {kind}s" if self._count > 1 else f"a {kind}"

    def write(self, value: Any) -> str:
        flat = importlib.import_module("numpy").asarray(value).ravel()
        return " ".join(str(int(x)) if self._whole else f"{float(x):.{self._digits}g}" for x in flat)

    def read(self, text: str) -> Any:
        words = text.split()
        pattern = _WHOLE if self._whole else _REAL
        if len(words) != self._count or not all(map(pattern.fullmatch, words)):
            raise NotInSpaceError(self.hint)
        numpy = importlib.import_module("numpy")
        # A number beyond the range of the type must not wrap around into the space.
        wide = numpy.array([int(w) if self._whole else float(w) for w in words])
        with numpy.errstate(over="ignore"):
            value = wide.astype(self._space.dtype).reshape(self._space.shape)
        if (self._whole and not (value.ravel() == wide).all()) or not self._space.contains(value):
            raise NotInSpaceError(f"{self.hint} within the bounds")
        return value


class _Parts:
    def __init__(
        self, space: Any, parts: Mapping[str, SpaceText], *, keys: Sequence[Any], named: bool
    ) -> None:
        self._space = space
        self._parts = parts
        self._keys = keys
        self._named = named
        self.hint = ", ".join(
            f"{key}: {_nested(part, part.hint)}" if named else _nested(part, part.hint)
            for key, part in parts.items()
        )

    def write(self, value: Any) -> str:
        written = [
            _nested(part, part.write(value[key]))
            for key, part in zip(self._keys, self._parts.values(), strict=True)
        ]
        if not self._named:
            return ", ".join(written)
        return ", ".join(f"{key}: {text}" for key, text in zip(self._parts, written, strict=True))

    def read(self, text: str) -> Any:
        said = _split(text)
        if self._named:
            pairs = [piece.partition(":")[::2] for piece in said]
            by_key = {key.strip(): piece for key, piece in pairs}
        else:
            by_key = dict(zip(self._parts, said, strict=False))
        if len(said) != len(self._parts) or by_key.keys() != self._parts.keys():
            raise NotInSpaceError(self.hint)
        values = [part.read(_peeled(part, by_key[name], self.hint)) for name, part in self._parts.items()]
        is_dict = hasattr(self._space, "keys")
        return dict(zip(self._keys, values, strict=True)) if is_dict else tuple(values)

    def check_readable(self) -> None:
        for key, part in self._parts.items():
            if isinstance(part, _Free) and _SEPARATORS & set(part.space.character_set):
                raise ConfigError(
                    "a text inside another space may hold what separates parts", got=f"{self._space!r:.200}"
                )
            if self._named and _SEPARATORS & set(key):
                raise ConfigError("a key may not hold a separator", got=repr(key))
            readable(part)


def _nested(part: SpaceText, text: str) -> str:
    return f"({text})" if isinstance(part, _Parts) else text


def _peeled(part: SpaceText, text: str, hint: str) -> str:
    """Return a part's text without the parentheses that only a nested one has."""
    text = text.strip()
    if not isinstance(part, _Parts):
        return text
    if not (text.startswith("(") and text.endswith(")")):
        raise NotInSpaceError(hint)
    return text[1:-1]


def _split(text: str) -> list[str]:
    """Return the pieces between commas that no parentheses enclose."""
    pieces, depth = [""], 0
    for character in text:
        depth += (character == "(") - (character == ")")
        if character == "," and not depth:
            pieces.append("")
        else:
            pieces[-1] += character
    return pieces


def _check_names(names: Sequence[str], count: int, space: Any) -> None:
    if names and len(names) != count:
        raise ConfigError(
            "names do not fit their space", got=list(names), limit=f"{count} for {space!r:.100}"
        )
