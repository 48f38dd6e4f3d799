"""`forebay audit`: how fast each part of a run is, how much it bears, and which of them limits it."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Final

import typer

from forebay.cli.audit_choice import Choice, Files, parts_of
from forebay.cli.audit_options import refuse_unused
from forebay.cli.audit_parts import PART_NAMES, named_parts
from forebay.cli.audit_session import Session
from forebay.cli.auditing import Wanted, parse_concurrency
from forebay.planner.probe_actions import PolicyName
from forebay.telemetry.logs import setup_logging

_ENVIRONMENTS_S: Final = 60.0
_TIMES: Final = (
    "Time to measure each part; by default 60 for environments, together, which may take as much again to "
    "end; generator 40, weights 10, store 10, learner 20."
)

Target = Annotated[
    str | None,
    typer.Argument(
        metavar="CONFIG|MODULE:CLASS|URL",
        help="TOML file; or an environment alone: entrypoint or built-in name; or a generator's address.",
        show_default=False,
    ),
]
PartOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="PART",
        help=f"Only this part; may be given several times: {', '.join(PART_NAMES)}.",
        show_default=False,
    ),
]
EnvironmentOption = Annotated[
    str | None,
    typer.Option(help="NAME of one section [environment.NAME]; by default all.", show_default=False),
]
Seconds = Annotated[float | None, typer.Option("--seconds", min=0.1, help=_TIMES, show_default=False)]
Address = Annotated[
    str | None,
    typer.Option(
        metavar="URL", help="A generator that runs already, instead of one of its own.", show_default=False
    ),
]
TokenVariable = Annotated[
    str | None, typer.Option(help="Variable with the token of a generator at a URL.", show_default=False)
]
Requests = Annotated[
    str | None,
    typer.Option(help="Requests at a time, ascending; by default up to twice the slots.", show_default=False),
]
Out = Annotated[Path | None, typer.Option(help="Profile to write, or to add to.", show_default=False)]
Merge = Annotated[
    list[Path] | None,
    typer.Option(help="Profile whose parts are taken over; may be given several times.", show_default=False),
]


def audit(
    context: typer.Context,
    target: Target = None,
    part: PartOption = None,
    environment: EnvironmentOption = None,
    concurrency: Annotated[str, typer.Option(help="Episodes at a time, ascending.")] = "1,4,16,64",
    duration: Seconds = None,
    policy: Annotated[PolicyName, typer.Option(help="Who answers the environment.")] = "auto",
    action: Annotated[str | None, typer.Option(help="What is always answered.", show_default=False)] = None,
    action_length: Annotated[int, typer.Option(min=0, help="Characters of a random answer.")] = 64,
    generator: Address = None,
    token_env: TokenVariable = None,
    requests: Requests = None,
    prompt_tokens: Annotated[int, typer.Option(min=1, help="Tokens of a prompt without episodes.")] = 128,
    answer_tokens: Annotated[int, typer.Option(min=1, help="Tokens of the answer to it.")] = 64,
    out: Out = None,
    merge: Merge = None,
    replace: Annotated[bool, typer.Option(help="Replace what --out or --merge holds already.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure the parts of a run; say which one limits it, and what to change.

    Of a configuration: its environments, generator, weights on their way to it, store and learner. An
    environment's demonstrations play it if it has any, else random text does. Ctrl-C keeps what was measured;
    so does the failure of a part, which ends with its exit code.

    Examples:
        forebay audit examples/calculator.toml --out profile.json
        forebay audit my_environment:MyEnvironment --concurrency 1,8 --seconds 30
        forebay audit run.toml --part generator --part learner --merge environment.json --out profile.json
        forebay audit http://127.0.0.1:8100 --requests 1,8,32 --json
        forebay audit --merge environment.json --merge machines.json --out profile.json
    """
    setup_logging("audit")
    files = Files(out, tuple(merge or ()), replaces=replace)
    known = files.known()
    given = _given(context)
    if target is None:
        refuse_unused(given, ())
        files.write(known)
        return
    command = _command(target, part, concurrency, duration, requests)
    levels, window_s = parse_concurrency(concurrency), duration or _ENVIRONMENTS_S
    choice = Choice(
        target=target,
        parts=named_parts(part) if part else None,
        environment=environment,
        seconds_s=duration,
        environments=Wanted(levels, window_s, policy, action, action_length, command),
        generator=generator,
        token_env=token_env,
        requests=None if requests is None else parse_concurrency(requests, "--requests"),
        prompt_tokens=prompt_tokens,
        answer_tokens=answer_tokens,
        command=command,
    )
    refuse_unused(given, choice.measured, is_address=choice.is_address)
    with parts_of(choice, known) as make:
        Session(files, known, json=json).run(make)


def _given(context: typer.Context) -> list[str]:
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return [name for name, source in sources.items() if source is not None and source.name != "DEFAULT"]


def _command(
    target: str,
    parts: list[str] | None,
    concurrency: str,
    seconds_s: float | None,
    requests: str | None,
) -> str:
    words = ["forebay", "audit", target]
    words += [word for name in parts or () for word in ("--part", name)]
    if not target.startswith("http") and (not parts or "environment" in parts):
        words += ["--concurrency", concurrency.replace(" ", "")]
    words += [] if seconds_s is None else ["--seconds", f"{seconds_s:g}"]
    words += [] if requests is None else ["--requests", requests.replace(" ", "")]
    return shlex.join(words)
