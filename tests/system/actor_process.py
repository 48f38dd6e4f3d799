"""An actor over an LMDB store: `python -m tests.system.actor_process STORE MODE`."""

from __future__ import annotations

import asyncio
import sys
import time
from pathlib import Path

from forebay.actors.run import run_actor
from forebay.actors.settings import ActorSettings
from forebay.envs.protocol import Action, Outcome
from forebay.errors import ForebayError
from forebay.store import StoreSettings, open_store
from forebay.store.rules import RuleStore
from tests.unit.actors.support import CHAT, Scripted, ScriptedGenerator, SlowCalculator, kind


def open_test_store(path: str) -> RuleStore:
    settings = StoreSettings(
        path=Path(path),
        durability="os",
        capacity_bytes=1 << 28,
        retained_capacity_bytes=1 << 28,
        map_bytes=1 << 30,
    )
    return open_store(settings, "run")


async def block(action: Action) -> Outcome:
    while True:
        time.sleep(0.01)


def main() -> None:
    store_path, mode = sys.argv[1:]
    store = open_test_store(store_path)
    make = {"work": lambda _: SlowCalculator(), "block": lambda _: Scripted(step=block)}[mode]
    settings = ActorSettings(
        episodes_per_process=64,
        lease_ttl_s=3.0,
        heartbeat_s=0.3,
        drain_s=20.0,
        blocked_s=0.2 if mode == "block" else 30.0,
        blocked_limit_s=0.6 if mode == "block" else 60.0,
    )
    try:
        asyncio.run(
            run_actor(
                store=store,
                generator=ScriptedGenerator(delay_s=0.02),
                chat=CHAT,
                environments={"calculator": kind(make)},
                settings=settings,
                run_seed=0,
                name="actor-0",
            )
        )
    except ForebayError as error:
        sys.exit(error.exit_code)
    finally:
        store.close()


if __name__ == "__main__":
    main()
