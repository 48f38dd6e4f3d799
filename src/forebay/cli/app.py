"""The commands by name, and the exit codes that errors turn into."""

from __future__ import annotations

import errno
import os
import sys

import typer

from forebay.cli import configuration, demo, doctor, evaluation, export, roles, store, supervised, train
from forebay.errors import ConfigError, ForebayError, PeerFailedError
from forebay.launch.placement import settle_in

app = typer.Typer(
    name="forebay",
    help="Asynchronous reinforcement learning for language-model agents.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 2 bad configuration or usage, 3 no progress, 4 a peer or service failed, "
    "130 interrupted.",
)
app.command("demo")(demo.demo)
app.command("train")(train.train)
app.command("sft")(supervised.sft)
app.command("eval")(evaluation.evaluate)
app.command("learn")(roles.learn)
app.command("generate")(roles.generate)
app.command("act")(roles.act)
app.command("export")(export.export)
app.command("doctor")(doctor.doctor)
app.add_typer(store.app, name="store")
app.add_typer(configuration.app, name="config")

_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


def main() -> None:
    """Run the command line; every expected error ends in one clear line and its exit code."""
    settle_in()
    try:
        app()
    except ForebayError as error:
        _fail(error)
    except OSError as error:
        explained = explain(error)
        if explained is None:
            raise
        _fail(explained)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise SystemExit(130) from None


def explain(error: OSError) -> ForebayError | None:
    """Return what a user can do about a refusal of the operating system; None for a fault of the program."""
    place = f"{error.filename}: " if error.filename else ""
    if error.errno in _FULL:
        return PeerFailedError(
            f"{place}{error.strerror}", remedy="Free space on that disk, and run it again."
        )
    if error.errno in _FORBIDDEN:
        return ConfigError(f"{place}{error.strerror}", remedy="Check the path and its permissions.")
    return None


def _fail(error: ForebayError) -> None:
    typer.echo(f"error: {error}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of XLA or of a server must not keep a failed process alive.
    os._exit(error.exit_code)
