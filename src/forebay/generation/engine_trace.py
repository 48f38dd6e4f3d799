"""The generator in its trace: device calls, requests on lanes of their own, and how long the queue is."""

from __future__ import annotations

from forebay.clock import Clock
from forebay.generation.slots import Running
from forebay.telemetry.trace import OFF, Argument, Tracer, member_of

_GAUGE_PERIOD_S = 0.25


class EngineTrace:
    """Records what a scheduler does.

    Args:
        clock: Source of time.
        tracer: Where it is recorded.
    """

    def __init__(self, clock: Clock, tracer: Tracer = OFF) -> None:
        self._clock = clock
        self._tracer = tracer
        self._gauged_s = self._idle_s = clock.monotonic_s()
        self._idle = True

    def call(self, name: str, began_s: float, **arguments: Argument) -> None:
        """Record a call of the device that has just returned."""
        self._tracer.slice(name, began_s, self._clock.monotonic_s(), arguments=arguments)

    def woken(self) -> None:
        """Record that there is something to do again."""
        if self._idle:
            self._tracer.slice("waits for requests", self._idle_s, self._clock.monotonic_s())

    def rests(self, *, idle: bool) -> None:
        """Note whether there is nothing to do."""
        self._idle, self._idle_s = idle, self._clock.monotonic_s()

    def request(self, running: Running, finish: str) -> None:
        """Record a request that leaves its slot, if its member is followed."""
        request = running.waiting.request
        member = member_of(request.episode_id)
        if not self._tracer.follows(member):
            return
        arrived_s, now_s = running.waiting.arrived_s, self._clock.monotonic_s()
        first_s = now_s if running.first_decode_s is None else running.first_decode_s
        lane = self._tracer.lane("request", arrived_s, now_s)
        self._tracer.slice("queue and prompt", arrived_s, first_s, track=lane, members=(member,))
        if running.num_sampled:
            arguments: dict[str, Argument] = {
                "tokens": running.num_sampled,
                "finish": finish,
                "request": request.request_id,
            }
            self._tracer.slice("generate", first_s, now_s, track=lane, members=(member,), arguments=arguments)

    def gauge(self, num_waiting: int, num_running: int) -> None:
        """Record how many requests wait and run, a few times a second."""
        now_s = self._clock.monotonic_s()
        if self._tracer.enabled and now_s - self._gauged_s >= _GAUGE_PERIOD_S:
            self._gauged_s = now_s
            self._tracer.counter("requests waiting", num_waiting)
            self._tracer.counter("requests running", num_running)
