"""Kills the processes of a run again and again, lets it finish, and accounts for every trajectory.

`python tests/system/soak.py --kills 20 --seed 1` prints one JSON object: the seed, every kill, the totals,
and what is wrong. The plan of the kills follows from the seed, in steps and points of the loop, so that a
failure can be run again. With `--processes 4` single processes of the learner are killed too.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.redis_server import ALWAYS, RedisServer
from tests.system.harness import Harness, Server, account, command
from tests.system.kill_plan import POINTS, plan_kills
from tests.system.soak_models import MODELS, settings_of


def soak(
    directory: Path,
    num_kills: int,
    seed: int,
    *,
    keep_consumed: bool = True,
    server: Server | None = None,
    model: str = "dense",
    processes: int = 1,
) -> dict[str, Any]:
    """Run a training under kills, check its accounts, and replay its journal.

    Args:
        directory: Empty; the run is left there.
        num_kills: Kills planned; those that hit twice count twice.
        seed: Decides the kills.
        keep_consumed: Keep the journal and replay it at the end; otherwise checkpoints let the store forget.
        server: Where the store lives, and dies too; embedded without one.
        model: What is trained, one of `MODELS`.
        processes: Of the learner.

    Returns:
        What happened; `wrong` is empty if everything is right.
    """
    began_s = time.monotonic()
    steps = 5 * num_kills + 8
    overrides = (f"learner.steps={steps}", f"learner.keep_consumed={str(keep_consumed).lower()}")
    overrides += ("store.engine=redis", f"store.url={server.url}") if server else ()
    overrides += settings_of(model, processes, directory)
    with Harness(directory, overrides, server=server, hang_s=240.0 if processes == 1 else 900.0) as harness:
        points = POINTS if keep_consumed else (*POINTS, "committed")
        kills = plan_kills(num_kills, seed, points, served=server is not None, members=processes)
        code = harness.run_through(kills)
        wrong = [] if code == 0 else [f"the training ended with {code}: {harness.tail()}"]
        totals: dict[str, Any] = {}
        if code == 0:
            totals, found = account(harness)
            wrong += found
            checks = [("verify", "accounts are right")]
            # Sums over more than two processes have another order than those of the one that replays.
            checks += [("replay", "bit for bit equal")] if keep_consumed and processes == 1 else []
            for name, expected in checks:
                outcome = command("store", name, str(harness.run))
                totals[name] = outcome.stdout.strip().splitlines()[-1:]
                if outcome.returncode or expected not in outcome.stdout:
                    wrong.append(f"store {name} ended with {outcome.returncode}: {outcome.stderr[-600:]}")
    return {
        "seed": seed,
        "keep_consumed": keep_consumed,
        "engine": "redis" if server else "lmdb",
        "model": model,
        "processes": processes,
        "planned": num_kills,
        "num_kills": len(harness.done),
        "kills": harness.done,
        "totals": totals,
        "wall_s": round(time.monotonic() - began_s, 1),
        "wrong": wrong,
    }


def main() -> int:
    """Soak, print the outcome, and remove the run if it is right."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20, help="kills planned")
    parser.add_argument("--seed", type=int, default=None, help="decides the kills; the clock's by default")
    parser.add_argument("--forget", action="store_true", help="let checkpoints make the store forget")
    parser.add_argument("--redis", action="store_true", help="on a Redis server, which is killed too")
    parser.add_argument("--model", choices=MODELS, default="dense", help="what is trained")
    parser.add_argument("--processes", type=int, choices=(1, 2, 4), default=1, help="of the learner")
    arguments = parser.parse_args()
    seed = arguments.seed if arguments.seed is not None else time.time_ns() % 2**31
    print(f"seed {seed}", file=sys.stderr, flush=True)
    directory = Path(tempfile.mkdtemp(prefix="forebay-soak-"))
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer(directory / "redis", *ALWAYS)) if arguments.redis else None
        outcome = soak(
            directory,
            arguments.kills,
            seed,
            keep_consumed=not arguments.forget,
            server=server,
            model=arguments.model,
            processes=arguments.processes,
        )
    print(json.dumps(outcome, indent=1))
    if outcome["wrong"]:
        flags = (" --forget" if arguments.forget else "") + (" --redis" if arguments.redis else "")
        flags += f" --model {arguments.model} --processes {arguments.processes}"
        again = f"--kills {arguments.kills} --seed {seed}{flags}"
        print(f"the run is in {directory}; again: {again}", file=sys.stderr)
        return 1
    shutil.rmtree(directory)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
