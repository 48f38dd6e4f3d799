"""The commands by name, and the exit codes that errors turn into."""

from __future__ import annotations

import errno
import os
import sys
from typing import Annotated, Any, ClassVar

import typer

from forebay import __version__
from forebay.cli.lazy import Entry, LazyGroup
from forebay.errors import ConfigError, ForebayError, PeerFailedError, first_cause


class Commands(LazyGroup):
    """Every command: its name, where it is, and the first line of its docstring."""

    entries: ClassVar = {
        "demo": Entry(
            "forebay.cli.demo:demo",
            "Train a small agent with slow tools, first synchronously, then decoupled, and compare.",
        ),
        "train": Entry(
            "forebay.cli.train:train",
            "Train on this machine: learner, generator and actors as processes, restarted when they die.",
        ),
        "sft": Entry(
            "forebay.cli.supervised:sft",
            "Imitate demonstrations and write a model directory that `model.path` can name.",
        ),
        "eval": Entry(
            "forebay.cli.evaluation:evaluate",
            "Evaluate a run's newest weights on held-out tasks; without a generator, one is started.",
        ),
        "learn": Entry(
            "forebay.cli.roles:learn", "Train the model of a run on what actors put into its store."
        ),
        "generate": Entry(
            "forebay.cli.roles:generate",
            "Serve completions of a run's newest weights over HTTP, or keep its vLLM servers at them.",
        ),
        "act": Entry(
            "forebay.cli.roles:act",
            "Run episodes: claim tasks from a run's store, act, and put the trajectories back.",
        ),
        "export": Entry(
            "forebay.cli.export:export",
            "Write a published version, its configuration and tokenizer: for transformers, vLLM or "
            "`model.path`.",
        ),
        "import": Entry(
            "forebay.cli.importing:import_model",
            "Write the model of a GGUF file, dequantized: for transformers, vLLM or `model.path`.",
        ),
        "trace": Entry(
            "forebay.cli.trace:trace",
            "Write what every process of a run did when, as one timeline for Perfetto.",
        ),
        "fit": Entry(
            "forebay.cli.fit:fit",
            "Compile the train step for chips that are not here: whether it fits, and how fast it could be.",
        ),
        "audit": Entry(
            "forebay.cli.audit:audit",
            "Measure the parts of a run; say which one limits it, and what to change.",
        ),
        "plan": Entry(
            "forebay.cli.plan:plan",
            "Find the smallest fleet that keeps the learner busy, by simulation, before anything is rented.",
        ),
        "simulate": Entry(
            "forebay.cli.simulate:simulate",
            "Say what a run would do: busy, goodput, staleness, discards, waits. Same seed, same answer.",
        ),
        "play": Entry(
            "forebay.cli.play:play",
            "Play one episode: messages, sampled tokens with their logprobs, rewards and times.",
        ),
        "env": Entry(
            "forebay.cli.environment:app", "Check an environment, and list those that come with forebay."
        ),
        "init": Entry("forebay.cli.init:app", "Write files to begin with, which work as they are."),
        "report": Entry(
            "forebay.cli.report:report",
            "Write a page about a run, or two side by side: verdict, time, learning, data, sampled "
            "trajectories.",
        ),
        "doctor": Entry(
            "forebay.cli.doctor:doctor",
            "Check this machine, and say how to mend what is wrong; exit with 4 if something is.",
        ),
        "store": Entry("forebay.cli.store:app", "Look into the store of a run."),
        "config": Entry("forebay.cli.configuration:app", "Check, show and compare configurations."),
    }


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"forebay {__version__}")
        raise typer.Exit()


def _options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""


app = typer.Typer(
    name="forebay",
    callback=_options,
    cls=Commands,
    help="Asynchronous reinforcement learning for language-model agents.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 done, 2 bad configuration or usage, 3 no progress, 4 a peer or service failed, "
    "130 interrupted.",
)

# typer brings its own copy of click; this is the one name of its usage errors that is public.
_UsageError: Any = typer.BadParameter.__base__
_FULL = (errno.ENOSPC, errno.EDQUOT)
_FORBIDDEN = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG)


def main() -> None:
    """Run the command line; every expected error ends in one clear line and its exit code."""
    _settle_in()
    try:
        code = app(standalone_mode=False)
    except _UsageError as error:
        raise SystemExit(_report_usage(error)) from None
    except ForebayError as error:
        _fail(first_cause(error))
    except OSError as error:
        explained = explain(error)
        if explained is None:
            raise
        _fail(explained)
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise SystemExit(130) from None
    else:
        raise SystemExit(code if isinstance(code, int) else 0)


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


def _settle_in() -> None:
    # Only what a supervisor started has a place to take; nobody else waits for the import.
    if any(name.startswith("FOREBAY_") for name in os.environ):
        from forebay.launch.placement import settle_in

        settle_in()


def _report_usage(error: Any) -> int:
    message = error.format_message()
    if "\n" in message or error.ctx is None:  # the help of a command that was given nothing
        typer.echo(message, err=True)
    else:
        full_stop = "" if message.endswith(("?", ".")) else "."
        typer.echo(f"error: {message}{full_stop} See {error.ctx.command_path} --help.", err=True)
    return int(error.exit_code)


def _fail(error: ForebayError) -> None:
    typer.echo(f"error: {error}", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads of XLA or of a server must not keep a failed process alive.
    os._exit(error.exit_code)
