"""Text for a page: numbers with their units, and model text made harmless and visible."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping
from typing import Any, Final

import msgspec

NOT_RECORDED: Final = "not recorded"
# Invisible or direction-changing characters are shown by their code point.
_HIDDEN: Final = frozenset(("Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_JSON_ESCAPES: Final[Mapping[str, str]] = {
    "<": "\\u003c",
    ">": "\\u003e",
    "&": "\\u0026",
    "\u2028": "\\u2028",
    "\u2029": "\\u2029",
}


def visible(text: str) -> str:
    r"""Return text in which nothing is hidden: control characters, bidi marks and surrogates become signs.

    Line feeds stay; HTML is not escaped here, that is the template's work.

    Example:
        >>> visible("a\x1b[31m\u202eb")
        'a␛[31m⟨202E⟩b'
    """
    return "".join(map(_visible_character, text))


def _visible_character(character: str) -> str:
    if character == "\n" or " " <= character <= "~":
        return character
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    category = unicodedata.category(character)
    return f"⟨{code:04X}⟩" if category == "Cc" or category in _HIDDEN else character


def json_for_script(value: Any) -> str:
    r"""Return JSON that may stand inside a `<script>` element, whatever the strings in it say.

    Example:
        >>> json_for_script({"name": "</script>"})
        '{"name":"\\u003c/script\\u003e"}'
    """
    text = msgspec.json.encode(value).decode()
    for character, escape in _JSON_ESCAPES.items():
        text = text.replace(character, escape)
    return text


def percent(share: float | None) -> str:
    """Return a share as a percentage.

    Example:
        >>> percent(0.9784), percent(0.0002), percent(None)
        ('97.8 %', '0.02 %', 'not recorded')
    """
    if share is None:
        return NOT_RECORDED
    value = 100 * share
    return f"{value:.2f} %" if 0 < abs(value) < 0.095 else f"{value:.1f} %"


def seconds(value_s: float | None) -> str:
    """Return a duration in a unit that suits it.

    Example:
        >>> seconds(0.0123), seconds(6.1), seconds(91.0), seconds(7260.0)
        ('12.3 ms', '6.10 s', '1 min 31 s', '2 h 1 min')
    """
    if value_s is None:
        return NOT_RECORDED
    if value_s == 0:
        return "0 s"
    if value_s < 0.0995:
        return f"{1000 * value_s:.3g} ms"
    if value_s < 60:
        return f"{value_s:.3g} s" if value_s >= 9.995 else f"{value_s:.2f} s"
    minutes, rest_s = divmod(round(value_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest_s} s"


def number(value: float | None) -> str:
    """Return a figure with three significant digits, a whole number with all of its digits.

    Example:
        >>> number(4512), number(0.84641), number(922.01), number(None)
        ('4,512', '0.846', '922', 'not recorded')
    """
    if value is None:
        return NOT_RECORDED
    if not math.isfinite(value):
        return str(value)
    if float(value).is_integer() or abs(value) >= 1000:
        return f"{value:,.0f}"
    if 0 < abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}"


def size(num_bytes: float | None) -> str:
    """Return a number of bytes in a unit that suits it.

    Example:
        >>> size(8430272)
        '8.0 MiB'
    """
    if num_bytes is None:
        return NOT_RECORDED
    value = float(num_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if value < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"
