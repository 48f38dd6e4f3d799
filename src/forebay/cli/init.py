"""`forebay init`: files to begin with, which work as they are."""

from __future__ import annotations

import importlib.util
import keyword
import re
import shutil
import sys
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from forebay.errors import ConfigError
from forebay.telemetry.files import require_place

app = typer.Typer(help="Write files to begin with, which work as they are.", no_args_is_help=True)

_TEMPLATES: Final = Path(__file__).parent.parent / "assets" / "own_environment"
_FILES: Final = {
    "environment.py.txt": "$name.py",
    "config.toml.txt": "$name.toml",
    "test_environment.py.txt": "test_$name.py",
    "README.md.txt": "README.md",
}
_NAME: Final = re.compile("[a-z][a-z0-9_]{0,39}")


@app.callback()
def _group() -> None:
    """Keep `env` a subcommand while it is the only one."""


@app.command()
def env(
    name: Annotated[str, typer.Argument(help="Name of the environment and its module.", show_default=False)],
    to: Annotated[
        Path | None, typer.Option(help="Directory to make; by default ./NAME.", show_default=False)
    ] = None,
) -> None:
    """Write an environment of your own: a module, a configuration to train it, a test and a README.

    Examples:
        forebay init env maze
        forebay init env maze --to environments/maze
    """
    check_module_name(name)
    directory = to or Path(name)
    write_environment(name, directory)
    typer.echo(
        f"{directory} is ready:\n"
        f"  cd {directory}\n"
        f"  forebay env check --config {name}.toml\n"
        f"  forebay train {name}.toml"
    )


def check_module_name(name: str) -> None:
    """Refuse a name that cannot be the name of a new module.

    Raises:
        ConfigError: It is no identifier, a keyword, or the name of a module that is there already.
    """
    if not _NAME.fullmatch(name):
        proposed = re.sub("[^a-z0-9]+", "_", name.lower()).strip("_0123456789")[:40]
        raise ConfigError(
            "the name of an environment is the name of its module",
            got=repr(name[:80]),
            limit="a lower-case letter, then at most 39 lower-case letters, digits or _",
            remedy=f"Try {proposed}." if _NAME.fullmatch(proposed) else None,
        )
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        raise ConfigError(f"{name} is a keyword of Python", remedy=f"Try {name}_env.")
    if name in sys.stdlib_module_names or name == "forebay" or importlib.util.find_spec(name) is not None:
        raise ConfigError(
            f"there is a module {name} already, and one of the two would hide the other",
            remedy=f"Try {name}_env.",
        )


def write_environment(name: str, directory: Path) -> None:
    """Write the files of a new environment; the directory appears whole or not at all.

    Args:
        name: Its name, checked.
        directory: Must not exist.

    Raises:
        ConfigError: The directory exists, or cannot be made.
    """
    require_place(directory, is_new=True)
    words = {"name": name, "class_name": class_name_of(name)}
    directory.parent.mkdir(parents=True, exist_ok=True)
    partial = directory.with_name(f".partial-{directory.name}")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        for template, target in _FILES.items():
            text = Template((_TEMPLATES / template).read_text("utf-8")).substitute(words)
            (partial / Template(target).substitute(words)).write_text(text, "utf-8")
        partial.rename(directory)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def class_name_of(module_name: str) -> str:
    """Return the name of the class in a module.

    Example:
        >>> class_name_of("grid_world2")
        'GridWorld2'
    """
    return "".join(word.capitalize() for word in module_name.split("_"))
