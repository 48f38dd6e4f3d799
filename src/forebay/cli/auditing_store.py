"""The store's part of an audit: how many results it takes in, how long a put and the take of a batch last."""

from __future__ import annotations

from typing import Any, Final

import msgspec
from rich.console import Console

from forebay.cli.audit_parts import PartName, Say, make_origin, times_table
from forebay.cli.audit_rig import Rig
from forebay.clock import Clock
from forebay.planner.audit_calls import interval, times
from forebay.planner.audit_statistics import mean_estimate
from forebay.planner.distribution import Distribution, constant, pooled
from forebay.planner.profile import Profile, StoreProfile
from forebay.report.text import number, size
from forebay.store.bench.configured import StoreSamples, Use, measure_store

_BYTES_PER_TOKEN: Final = 8
_MOST_WRITERS: Final = 4


class StorePart:
    """The configured store under measurement, at its place or on its server.

    Args:
        rig: The run.
        limit_s: Time to measure; starting the processes comes on top.
        command: How this was asked for.
        clock: Source of time.
    """

    name: PartName = "store"

    def __init__(self, rig: Rig, limit_s: float, command: str, clock: Clock) -> None:
        self._rig, self._limit_s, self._command, self._clock = rig, limit_s, command, clock
        self._began_s = clock.wall_s()
        self._samples = StoreSamples(rates=[])

    def measure(self, say: Say) -> None:
        """Measure with as many writers as there are actor processes, up to four; see `Part.measure`."""
        self._began_s = self._clock.wall_s()
        config = self._rig.config
        settings = config.store
        if settings.engine == "lmdb" and settings.path is None:
            settings = settings.model_copy(update={"path": config.run.path / "store"})
        use = Use(
            payload_bytes=round(self._trajectory_bytes.mean),
            batch_groups=config.division.groups(config.batching),
            group_size=config.division.size,
            writers=min(config.actors.processes, _MOST_WRITERS),
        )
        measure_store(settings, use, self._limit_s, self._samples, say)

    def profile(self) -> Profile | None:
        """Return the store's part; see `Part.profile`."""
        found, settings = self._samples, self._rig.config.store
        if not found.take_s:
            return None
        # If it was interrupted before writers were at work, what one process did alone has to do.
        alone_s = sum(found.alone_put_s)
        rate = mean_estimate(found.rates or [found.num_alone / alone_s if alone_s else 0.0])
        place = (
            settings.url if settings.engine == "redis" else str(settings.path or self._rig.config.run.path)
        )
        return Profile(
            store=StoreProfile(
                origin=make_origin(self._clock, self._began_s, self._command, f"{place}"),
                engine=settings.engine,
                durability=settings.durability,
                puts_per_s=rate.value,
                puts_per_s_interval=interval(rate),
                paced_puts_per_s=found.paced_per_s if found.put_s else None,
                put_s=times(found.put_s or found.alone_put_s),
                take_s=times(found.take_s),
                trajectory_bytes=self._trajectory_bytes,
            )
        )

    def show(self, console: Console) -> None:
        """Print the page; see `Part.show`."""
        found, settings = self._samples, self._rig.config.store
        if not found.take_s:
            return
        bytes_ = size(self._trajectory_bytes.mean)
        title = f"\nstore, {settings.engine} ({settings.durability}), trajectories of {bytes_}"
        console.print(title, style="bold", markup=False)
        if found.rates:
            rate = mean_estimate(found.rates)
            sure = (
                "" if (ends := interval(rate)) is None else f", 95 % {number(ends[0])} to {number(ends[1])}"
            )
            console.print(f"{number(rate.value)} puts/s at full speed{sure}", markup=False)
        rows = [("take of a batch", times(found.take_s))]
        if found.put_s:
            rows.insert(0, (f"put, at {number(found.paced_per_s)}/s", times(found.put_s)))
        console.print(times_table("time of a", rows))

    def as_json(self) -> dict[str, Any]:
        """Return what was found; see `Part.as_json`."""
        found = self.profile()
        return {"store": None if found is None else msgspec.to_builtins(found.store)}

    @property
    def _trajectory_bytes(self) -> Distribution:
        traffic = self._rig.traffic
        if traffic:
            return pooled([one.trajectory_bytes for one in traffic.values()])
        return constant(float(self._rig.config.generator.context * _BYTES_PER_TOKEN // 2))
