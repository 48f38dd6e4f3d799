"""Runs the processes of a training on one machine, restarts those that die, ends with the first cause."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from forebay.clock import Clock
from forebay.errors import PeerFailedError
from forebay.launch.child import Child, ProcessSpec
from forebay.launch.gang import end_gang, to_blame
from forebay.launch.settings import LaunchSettings
from forebay.launch.stopping import stop_all

_POLL_S = 0.1
_FATAL_CODES = (2, 3)


class Supervisor:
    """Keeps processes alive until the leading one finishes.

    Consumes: the ends of its children. Waits for: the leading process. Unblocked by: any end, or a signal
    to stop. Produces: an exit code, and on failure the first cause.

    Args:
        specs: The processes; one leads.
        log_directory: Where each gets `NAME.log`.
        settings: Restarts and waits.
        clock: Source of time.
        on_tick: Called about ten times a second.
        report: Called with a line for each process that died and is started again.
        inherited: File descriptors that every process keeps open: the run's lock lasts as long as they do.
        step_s: Returns how long the last steps of the leading process took.
        newest_step: Returns the newest step that the leading process has ever trained; None if nobody knows.
            One that fails before it has trained a new one fails in a row, however long it lives.

    Attributes:
        first_cause: Why the first process of the latest series of failures ended.
        num_restarts: How often a process was started again.
        stopped: Whether the end was asked for.
    """

    def __init__(
        self,
        specs: Sequence[ProcessSpec],
        log_directory: Path,
        settings: LaunchSettings,
        clock: Clock,
        *,
        on_tick: Callable[[], None] = lambda: None,
        report: Callable[[str], None] = lambda line: None,
        inherited: Sequence[int] = (),
        step_s: Callable[[], Sequence[float]] = tuple,
        newest_step: Callable[[], int] | None = None,
    ) -> None:
        self._children = [Child(spec, log_directory / f"{spec.name}.log", inherited) for spec in specs]
        self._settings = settings
        self._clock = clock
        self._on_tick = on_tick
        self._report = report
        self._step_s = step_s
        self._newest_step = newest_step
        self._reached_step = -1
        self._stops: list[int] = []
        self._stops_at_end = 0
        self.first_cause: str | None = None
        self.num_restarts = 0
        self.stopped = False

    def pids(self) -> dict[str, int]:
        """Return the process id of every living child, by name."""
        return {c.spec.name: c.process.pid for c in self._children if c.process and c.alive}

    def request_stop(self, number: int = signal.SIGTERM) -> None:
        """Ask for an orderly end, or the second time for an end at once; safe in a signal handler."""
        self._stops.append(number)

    def run(self) -> int:
        """Supervise until the leading process ends or a stop is requested.

        Returns:
            0 when done or stopped by SIGTERM, 130 after SIGINT, 2 or 3 if a process ended so.

        Raises:
            PeerFailedError: A process failed more often in a row than allowed, or the leading one while it
                stopped.
        """
        code: int | None = None
        try:
            for child in self._children:
                child.start(self._clock.monotonic_s())
            while code is None and not self._stops:
                code = self._check_all()
                self._on_tick()
                self._clock.sleep(_POLL_S)
        finally:
            self._stop_all(done=code == 0)
            self._on_tick()
        self.stopped = code is None
        return self._stopped_code() if code is None else code

    def _check_all(self) -> int | None:
        now_s = self._clock.monotonic_s()
        for child in self._children:
            if child.restart_at_s is not None:
                if now_s >= child.restart_at_s:
                    child.start(now_s)
                continue
            assert child.process is not None
            code = child.process.poll()
            if code is not None:
                end = self._ended(child, code, now_s)
                if end is not None:
                    return end
        return None

    def _ended(self, child: Child, code: int, now_s: float) -> int | None:
        if child.spec.leads and code == 0:
            return 0
        mates = [child]
        if child.spec.gang:
            if code == 0:  # it has done its part, and the leading process ends next
                return None
            mates = [mate for mate in self._children if mate.spec.gang == child.spec.gang]
            codes = end_gang(mates, self._clock, self._settings.gang_grace_s, self._on_tick)
            if any(mate.spec.leads and codes.get(mate) == 0 for mate in mates):
                return 0
            child = to_blame(codes)
            code, now_s = codes[child], self._clock.monotonic_s()
        self._forgive(now_s)
        cause = child.cause(code)
        if code in _FATAL_CODES:
            error = child.error()
            self.first_cause = f"{child.spec.name}: {error}" if error else cause
            return code
        self.first_cause = self.first_cause or cause
        if child.restarts >= self._settings.max_restarts:
            raise PeerFailedError(
                f"{child.spec.name} failed {child.restarts + 1} times in a row; the first cause was: "
                f"{self.first_cause}",
                limit=f"launch.max_restarts={self._settings.max_restarts}",
                remedy=f"See {child.log_path}.",
            )
        self._restart(mates, child, cause, now_s)
        return None

    def _restart(self, mates: Sequence[Child], child: Child, cause: str, now_s: float) -> None:
        settings, restarts = self._settings, child.restarts + 1
        backoff_s = min(settings.restart_backoff_s * 2**child.restarts, settings.restart_backoff_max_s)
        self.num_restarts += 1
        if self._newest_step is not None and any(mate.spec.leads for mate in mates):
            self._reached_step = max(self._reached_step, self._newest_step())
        for mate in mates:
            mate.restarts, mate.restart_at_s = restarts, now_s + backoff_s
        what = "it" if len(mates) == 1 else f"all {len(mates)} processes of the learner"
        self._report(
            f"{cause.splitlines()[0]}; starting {what} again in {backoff_s:.1f} s, see {child.log_path}"
        )

    def _forgive(self, now_s: float) -> None:
        """Forget restarts that are long past, and with the last of them the first cause."""
        gets_on = self._newest_step is None or self._newest_step() > self._reached_step
        for child in self._children:
            trains = child.spec.leads or bool(child.spec.gang)
            if now_s - child.started_s >= self._settings.stable_s and (gets_on or not trains):
                child.restarts = 0
        if not any(child.restarts for child in self._children):
            self.first_cause = None

    def _stop_all(self, *, done: bool) -> None:
        """Stop the leading process first: it saves its state while the others still serve it."""
        self._stops_at_end = min(len(self._stops), 1)
        self._stop_leading()
        grace_s = self._settings.stop_grace_s
        # Once the run is done the others work in vain; what they leave unfinished was not acknowledged.
        others_grace_s = min(grace_s, self._settings.done_grace_s) if done else grace_s
        self._stop((c for c in self._children if not c.spec.leads), others_grace_s)

    def _stop_leading(self) -> None:
        leading = [child for child in self._children if child.spec.leads and child.alive]
        if not leading:
            return
        self._on_tick()  # whoever knows the steps looks once more
        name, steps_s = leading[0].spec.name, self._step_s()
        grace_s = self._settings.saving_grace_s(max(steps_s, default=0.0))
        limit = _spelled(grace_s, steps_s)
        self._report(
            f"stopping: {name} ends its step and saves, within {limit}; Ctrl-C again ends it at once"
        )
        if self._stop(leading, grace_s):
            why = "as asked" if self._hurried() else f"which took longer than {limit}"
            self._report(
                f"{name} was killed before it had saved its state, {why}; the run goes on from its last "
                f"checkpoint. How long it gets: launch.stop_grace_s={self._settings.stop_grace_s:g}, "
                f"launch.stop_grace_max_s={self._settings.stop_grace_max_s:g}."
            )

    def _hurried(self) -> bool:
        """Return whether a signal came after the one that asked for this end, if one did."""
        return len(self._stops) > self._stops_at_end

    def _stop(self, children: Iterable[Child], grace_s: float) -> bool:
        """End processes; return whether one had to be killed."""
        return stop_all(children, self._clock, grace_s, self._on_tick, self._hurried)

    def _stopped_code(self) -> int:
        for child in self._children:
            # One that waited to be started again had failed before, and was reported.
            if child.process is None or not child.spec.leads or child.restart_at_s is not None:
                continue
            code = child.process.poll()
            if code is not None and code > 0:
                raise PeerFailedError(
                    f"while it was stopping, {child.cause(code)}", remedy=f"See {child.log_path}."
                )
        return 130 if self._stops[0] == signal.SIGINT else 0


def _spelled(grace_s: float, steps_s: Sequence[float]) -> str:
    steps = ", ".join(f"{step_s:.1f}" for step_s in steps_s)
    return f"{grace_s:.1f} s" + (f" (its last steps took {steps} s)" if steps else "")
