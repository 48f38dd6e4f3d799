"""`forebay store bench`: how fast the store is here, beside what the machine can do at all."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from forebay.cli.runs import Run, join_run
from forebay.errors import ConfigError
from forebay.store.bench import ENGINES, Demand, Plan, judge, markdown, run_bench, to_json

_QUICK_WINDOW_S = 1.2
_QUICK_WARM_S = 0.4
_KIB = 1024
_MAX_GROUPS_READ = 256
_RUN_HELP = "A run directory: its store's engine and disk, and its learner's demand."


def bench(
    run: Annotated[Path | None, typer.Argument(help=_RUN_HELP)] = None,
    directory: Annotated[Path, typer.Option(help="On the disk that the store will lie on.")] = Path(),
    engines: Annotated[str, typer.Option(help="Rows, separated by commas.")] = ",".join(ENGINES),
    sizes: Annotated[str, typer.Option(help="KiB of a trajectory, separated by commas.")] = "52,256,1024",
    writers: Annotated[int, typer.Option(min=1, max=256, help="Writer processes.")] = 4,
    in_flight: Annotated[int, typer.Option(min=1, max=64, help="Puts that each makes at once.")] = 8,
    seconds: Annotated[float, typer.Option(min=0.5, max=600.0, help="Measured for each row.")] = 4.0,
    demand_per_s: Annotated[
        float | None, typer.Option(help="Trajectories that the learner consumes.")
    ] = None,
    demand_bytes: Annotated[int | None, typer.Option(min=1, help="Bytes of one of them.")] = None,
    quick: Annotated[bool, typer.Option(help="One size, short windows: within a minute.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Measure puts, takes and their cost, each engine beside its limits; end with a verdict.

    Processes write as actors do, and one takes, records and commits as the learner does: as fast as possible,
    and at a quarter of that rate. Nothing of a run is touched; what is written is removed.

    Examples:
        forebay store bench --quick
        forebay store bench runs/calculator
        forebay store bench --engines lmdb_os --demand-per-s 40 --demand-bytes 200000
    """
    joined = join_run(run) if run is not None else None
    plan = make_plan(
        _directory_of(joined) or directory,
        engines=engines,
        sizes=sizes,
        writers=writers,
        in_flight=in_flight,
        seconds=seconds,
        quick=quick,
    )
    demand = _demand(joined, plan, demand_per_s, demand_bytes)
    report = run_bench(plan, lambda what: typer.echo(what, err=True))
    verdict = judge(report, demand)
    if as_json:
        tree = to_json(report) | {"verdict": verdict}
        typer.echo(msgspec.json.format(msgspec.json.encode(tree), indent=2).decode())
        return
    typer.echo(markdown(report))
    typer.echo(f"\n{verdict}")


def make_plan(
    directory: Path,
    *,
    engines: str = ",".join(ENGINES),
    sizes: str = "52,256,1024",
    writers: int = 4,
    in_flight: int = 8,
    seconds: float = 4.0,
    quick: bool = False,
) -> Plan:
    """Return what is measured.

    Args:
        directory: On the disk to be measured.
        engines: Names, separated by commas.
        sizes: KiB of a trajectory, separated by commas.
        writers: Writer processes.
        in_flight: Puts that each makes at once.
        seconds: Measured for each row.
        quick: Whether to measure the first size only, and briefly.

    Raises:
        ConfigError: A size or an engine is none.
    """
    names = tuple(filter(None, (name.strip() for name in engines.split(","))))
    unknown = [name for name in names if name not in ENGINES]
    if unknown or not names:
        raise ConfigError(
            "no such engine", got=", ".join(unknown) or "none", limit=f"some of {', '.join(ENGINES)}"
        )
    plan = Plan(
        directory=directory,
        engines=names,
        sizes=_parse_sizes(sizes),
        writers=writers,
        in_flight=in_flight,
        window_s=seconds,
    )
    if not quick:
        return plan
    return msgspec.structs.replace(
        plan,
        sizes=plan.sizes[:1],
        window_s=min(seconds, _QUICK_WINDOW_S),
        warm_s=_QUICK_WARM_S,
        resident=(1_000, 10_000),
        cycles=(500, 2_000),
        quick=True,
    )


def _parse_sizes(text: str) -> tuple[int, ...]:
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and 0 < int(word) <= 1 << 18 for word in words):
        raise ConfigError("sizes are whole KiB, separated by commas", got=text, limit="1 to 262144 each")
    return tuple(dict.fromkeys(_KIB * int(word) for word in words))


def _directory_of(joined: Run | None) -> Path | None:
    if joined is None or joined.store_settings.path is None:
        return None
    return joined.store_settings.path.parent


def _demand(joined: Run | None, plan: Plan, per_s: float | None, num_bytes: int | None) -> Demand | None:
    """Return the demand that flags give, or a run."""
    if per_s is not None and not per_s > 0.0:
        raise ConfigError("a demand is a rate above 0", got=f"--demand-per-s {per_s}")
    if joined is not None:
        settings = joined.store_settings
        kind = {("redis", "fsync"): "redis_always", ("redis", "os"): "redis_everysec"}
        engine = kind.get((settings.engine, settings.durability), f"lmdb_{settings.durability}")
        if engine not in plan.engines:
            raise ConfigError("the run's engine is not measured", got=engine, remedy="Add it to --engines.")
        return Demand(engine, per_s or _consumed_per_s(joined), num_bytes or _stored_bytes(joined))
    if per_s is None and num_bytes is None:
        return None
    if per_s is None or num_bytes is None:
        raise ConfigError("--demand-per-s and --demand-bytes belong together: give both, or neither")
    return Demand(plan.engines[0], per_s, num_bytes)


def _consumed_per_s(joined: Run) -> float:
    path = joined.layout.summary
    remedy = "Give --demand-per-s, or let the run make some steps."
    try:
        steps_per_s = float(msgspec.json.decode(path.read_bytes())["steps_per_s"])
    except (OSError, KeyError, TypeError, msgspec.DecodeError) as error:
        raise ConfigError(f"{path} does not say how fast the run's learner is", remedy=remedy) from error
    if not steps_per_s > 0.0:
        raise ConfigError(f"{path} has no steps", got=steps_per_s, remedy=remedy)
    batching = joined.config.batching
    return steps_per_s * batching.groups * batching.group_size


def _stored_bytes(joined: Run) -> int:
    sizes: list[int] = []
    with joined.view_store() as view:
        for number, group in enumerate(view.groups()):
            if number == _MAX_GROUPS_READ:
                break
            sizes += [member.num_bytes for member in group.members if member.num_bytes]
    if not sizes:
        raise ConfigError(
            "the run's store holds no trajectory to tell a size by", remedy="Give --demand-bytes."
        )
    return sum(sizes) // len(sizes)
