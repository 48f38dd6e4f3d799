"""What others rely on, written down: public names, commands, and what the README shows of the source.

`make freeze` writes the current state; the tests compare with what was written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.house import sources

PUBLIC_NAMES = Path(__file__).with_name("public_names.txt")
COMMANDS = Path(__file__).with_name("commands.txt")
README = sources.ROOT / "README.md"

_TREE = re.compile(r"(<!-- tree: src/forebay -->\n```text\n).*?(\n```\n)", re.DOTALL)
_EXCERPT = re.compile(r"(<!-- source: (\S+) (\S+) -->\n```python\n).*?(\n```\n)", re.DOTALL)


def public_names() -> str:
    """Render one line per public name of each public module."""
    lines = [
        f"{module.name}: {name}"
        for module in sources.modules()
        if module.is_public
        for name in sources.public_names(module)
    ]
    return "\n".join(lines) + "\n"


def command_tree() -> Any:
    """Return the root of the commands that `forebay` offers."""
    import typer.main

    from forebay.cli import app

    return typer.main.get_command(app)


def walk_commands(command: Any, name: str = "forebay") -> Iterator[tuple[str, Any]]:
    """Yield every command with its full name, groups before their members."""
    yield name, command
    for child_name, child in sorted(getattr(command, "commands", {}).items()):
        yield from walk_commands(child, f"{name} {child_name}")


def options_of(command: Any) -> set[str]:
    """Return the spellings of the options of one command."""
    return {spelling for item in command.params for spelling in (*item.opts, *item.secondary_opts)}


def commands() -> str:
    """Render one line per command, and one per argument or option of it."""
    lines = []
    for name, command in walk_commands(command_tree()):
        lines.append(name)
        for item in sorted(command.params, key=lambda item: item.name):
            spelled = "/".join((*item.opts, *item.secondary_opts))
            notes = [word for word in ("required", "multiple", "is_flag") if getattr(item, word, False)]
            lines.append(" ".join([f"    {spelled}", *notes]))
    return "\n".join(lines) + "\n"


def tree() -> str:
    """Render the files of the package with the first line of their docstrings."""
    summaries = {module.path: module.summary for module in sources.modules()}
    lines = ["src/forebay/"]

    def add(directory: Path, depth: int) -> None:
        indent = "  " * depth
        for path in sorted(directory.glob("*.py")):
            if path.name != "__init__.py":
                lines.append(f"{indent + path.name:<27} {summaries[path]}".rstrip())
        for child in sorted(path for path in directory.iterdir() if (path / "__init__.py").exists()):
            lines.append(f"{f'{indent}{child.name}/':<25} {summaries[child / '__init__.py']}".rstrip())
            add(child, depth + 1)

    add(sources.PACKAGE, 1)
    return "\n".join(lines)


def refreshed(text: str) -> str:
    """Return a page with its tree and its excerpts brought up to date with the source."""
    text = _TREE.sub(lambda match: f"{match[1]}{tree()}{match[2]}", text)
    return _EXCERPT.sub(
        lambda match: f"{match[1]}{sources.find(sources.ROOT / match[2], match[3])}{match[4]}", text
    )


def freeze() -> None:
    """Write down the current surface."""
    PUBLIC_NAMES.write_text(public_names())
    COMMANDS.write_text(commands())
    README.write_text(refreshed(README.read_text()))


if __name__ == "__main__":
    freeze()
