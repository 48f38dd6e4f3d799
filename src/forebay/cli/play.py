"""`forebay play`: one episode in the terminal, played by a person or by a model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console

from forebay.cli.completing import complete_run
from forebay.cli.playing import Wanted, choose_task, play_episode, seated
from forebay.cli.transcript import Event, Screen, as_json, legend, summary, visible
from forebay.telemetry.logs import setup_logging
from forebay.trajectory import Trajectory


def play(
    target: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG_OR_RUN",
            help="TOML file or run directory: the environment, its tasks and limits.",
            show_default=False,
            autocompletion=complete_run,
        ),
    ],
    checkpoint: Annotated[
        str | None, typer.Option(help="A model that plays, named as in model.path.", show_default=False)
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="A run whose newest weights play.", show_default=False)
    ] = None,
    person: Annotated[bool, typer.Option("--person", help="You play, line by line.")] = False,
    task: Annotated[
        str | None,
        typer.Option(help="task_id; by default a held-out task, drawn by --seed.", show_default=False),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the task and of the sampling.")] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object at the end.")] = False,
) -> None:
    """Play one episode: messages, sampled tokens with their logprobs, rewards and times.

    A run plays its newest weights; a configuration is played by you, unless --checkpoint or --run says who
    does. An answer is one line; a backslash at its end goes on in the next. The end of the input leaves.

    Examples:
        forebay play examples/calculator.toml
        forebay play examples/calculator.toml --checkpoint builtin:calculator --seed 3
        forebay play runs/calculator --json
    """
    setup_logging("player")
    console = Console(highlight=False, soft_wrap=True)
    events: list[Event] = []
    with seated(Wanted(target, checkpoint, run, person)) as (config, player):
        posed = choose_task(config, task, seed)
        screen = Screen(console, person=player.weights is None, typed=sys.stdin.isatty())

        def tell(event: Event) -> None:
            events.append(event)
            if not json:
                screen.show(event)

        if not json:
            console.print(f"task {posed.task_id} of {posed.environment}, played by {visible(player.name)}")
        prompt = (lambda: None) if json else screen.prompt
        try:
            trajectory = play_episode(config, player, posed, seed, tell, prompt)
        except KeyboardInterrupt:
            typer.echo("\ninterrupted", err=True)
            raise
    if json:
        typer.echo(msgspec.json.encode(as_json(posed, player.name, events, trajectory)).decode())
    else:
        _show_end(console, trajectory, person=player.weights is None)


def _show_end(console: Console, trajectory: Trajectory | None, *, person: bool) -> None:
    if trajectory is None:
        console.print("\nleft before the end")
        return
    console.print(summary(trajectory), style="bold")
    if not person:
        console.print(legend(), style="dim")
