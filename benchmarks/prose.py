"""Markdown for pages that benchmarks write: prose is wrapped, tables, lists and code are left alone."""

from __future__ import annotations

import textwrap
from typing import Final

_WIDTH: Final = 120
_KEPT: Final = ("|", "- ", "#", "<", "`" * 3, "!")


def markdown(text: str) -> list[str]:
    r"""Return lines of Markdown, each paragraph wrapped anew.

    Args:
        text: Blocks, separated by empty lines.

    Example:
        >>> markdown("two\nlines\n\n- kept\n- as it is")
        ['two lines', '', '- kept', '- as it is', '']
    """
    lines = []
    for block in text.strip("\n").split("\n\n"):
        if block.startswith(_KEPT):
            lines += block.splitlines()
        else:
            words = " ".join(block.split())
            lines += textwrap.wrap(words, _WIDTH, break_long_words=False, break_on_hyphens=False)
        lines.append("")
    return lines
