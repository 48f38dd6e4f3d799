"""Commands that are imported when they are called, so that help and completion answer at once."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple, cast

import typer
from typer.core import TyperCommand, TyperGroup

_EXAMPLE = re.compile(r"\n\n(?=Examples?:\n)")
# Paragraphs that begin with this character are shown line by line.
_AS_WRITTEN = "\n\n\b\n"


class Entry(NamedTuple):
    """A command that is not imported yet.

    Attributes:
        target: `module:name` of its function, or of the `typer.Typer` that holds its subcommands.
        summary: The first line of its docstring, for the list of commands.
    """

    target: str
    summary: str


class LazyGroup(TyperGroup):
    """A group that knows its commands by name only; a subclass says which."""

    entries: ClassVar[Mapping[str, Entry]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = cast("dict[str, Any]", LazyCommands(self.entries))

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names, in the order of `entries`."""
        return list(self.entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return what a list of commands shows: a name and its summary."""
        entry = self.entries.get(cmd_name)
        return None if entry is None else TyperCommand(name=cmd_name, short_help=entry.summary)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that is called, imported."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, self.commands.get(name or "", command), rest


class LazyCommands(Mapping[str, Any]):
    """The commands of a group by name, each imported when it is asked for.

    Args:
        entries: Where they are.
    """

    def __init__(self, entries: Mapping[str, Entry]) -> None:
        self._entries = entries
        self._loaded: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._loaded:
            self._loaded[name] = load_command(name, self._entries[name].target)
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __contains__(self, name: object) -> bool:
        return name in self._entries


def load_command(name: str, target: str) -> Any:
    """Import a command.

    Args:
        name: What it is called.
        target: `module:name` of a function or a `typer.Typer`.
    """
    module, _, attribute = target.partition(":")
    found = getattr(importlib.import_module(module), attribute)
    # Without markup: an example must be what the shell takes, not a picture of it in a frame.
    holder = typer.Typer(rich_markup_mode=None, add_completion=False)
    if isinstance(found, typer.Typer):
        holder.add_typer(found, name=name)
        command: Any = cast(Any, typer.main.get_command(holder)).commands[name]
    else:
        holder.command(name)(found)
        command = typer.main.get_command(holder)
    _keep_examples(command)
    return command


def _keep_examples(command: Any) -> None:
    """Let help show the lines of an `Example:` section as they are written."""
    command.help = _EXAMPLE.sub(_AS_WRITTEN, command.help or "")
    for child in getattr(command, "commands", {}).values():
        _keep_examples(child)
