"""The generator process: bind, load, compile, serve, follow the weights, drain."""

from __future__ import annotations

import contextlib
import ipaddress
import logging
import signal
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import msgspec
import numpy as np
import uvicorn
import xxhash

from forebay.clock import Clock, SystemClock
from forebay.errors import ConfigError, ForebayError, GenerationError
from forebay.generation.client import read_token
from forebay.generation.engine import JaxExecutor, check_context, prepare_weights
from forebay.generation.local import LocalGenerator
from forebay.generation.protocol import GeneratorInfo
from forebay.generation.scheduler import Scheduler
from forebay.generation.server import Routes
from forebay.generation.settings import GeneratorSettings
from forebay.generation.watcher import WeightSource, WeightWatcher
from forebay.models.compiles import CompileCounter
from forebay.models.config import ModelConfig
from forebay.models.sharding import find_devices
from forebay.telemetry.trace import OFF, Tracer
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader

_CLOCK = SystemClock()
# Longer than clients keep idle connections, so that it is never the server that closes one under a request.
_KEEP_ALIVE_S = 75
log = logging.getLogger(__name__)


class GeneratorService:
    """A generator that follows a weight directory: the engine's thread and the watcher's.

    Args:
        model: The architecture.
        source: Where weights are published.
        settings: Sizes and rules.
        on_failure: Called from the engine's thread when it ends with an error.
        clock: Source of time.
        tracer: Records what the generator does.
    """

    def __init__(
        self,
        model: ModelConfig,
        source: WeightSource,
        settings: GeneratorSettings,
        *,
        on_failure: Callable[[], None] = lambda: None,
        clock: Clock = _CLOCK,
        tracer: Tracer = OFF,
    ) -> None:
        self._tracer = tracer
        check_context(model, settings)
        self._model, self._settings, self._clock = model, settings, clock
        self.compiles = CompileCounter()
        self.watcher = WeightWatcher(source, self._deliver, settings.poll_weights_s)
        info = GeneratorInfo(
            version=PolicyVersion(0, 0),
            context=settings.context,
            vocabulary=model.num_real_tokens,
            model=model_fingerprint(model),
            slots=settings.slots,
        )
        self.generator = LocalGenerator(self._build, info, on_failure=on_failure, clock=clock)

    def start(self) -> None:
        """Start loading; the generator says when it is ready."""
        self.generator.start()

    def stop(self) -> None:
        """Stop both threads."""
        self.watcher.stop()
        self.generator.stop()

    def _build(self) -> Scheduler:
        version, tensors = self.watcher.first(self._settings.first_weights_timeout_s, self._clock)
        executor = JaxExecutor(
            self._model, self._settings, prepare_weights(tensors, self._model, self._settings)
        )
        started_s = self._clock.monotonic_s()
        executor.warm_up()
        log.info(
            "serving weights %s; %d programs compiled in %.1f s; saved rows take up to %.0f MB",
            tuple(version),
            len(self.compiles.programs),
            self._clock.monotonic_s() - started_s,
            executor.row_bytes * (self._settings.parked_episodes + self._settings.shared_prefixes) / 1e6,
        )
        self.watcher.start()
        return Scheduler(executor, self._settings, version, self._clock, self._tracer)

    def _deliver(self, version: PolicyVersion, tensors: Mapping[str, np.ndarray]) -> None:
        with self._tracer.span("prepare weights", arguments={"version": version.version}):
            prepared = prepare_weights(tensors, self._model, self._settings)
        self.generator.load(version, prepared)


def run_server(
    model: ModelConfig,
    weights: Path,
    settings: GeneratorSettings,
    *,
    announce: Callable[[str], None] = lambda address: None,
    clock: Clock = _CLOCK,
    tracer: Tracer = OFF,
) -> None:
    """Serve until SIGTERM or SIGINT, then let running requests end.

    Call it in the main thread, with affinity and thread counts set before JAX was imported.

    Args:
        model: The architecture.
        weights: The weight directory; may still be empty.
        settings: Address, sizes and rules.
        announce: Called with the base address once the port is open; `/health` then says when it is ready.
        clock: Source of time.
        tracer: Records what the generator does; closed at the end.

    Raises:
        ConfigError: The address is open to the network without a token, the port is taken, there is no
            device, or the model and the settings do not fit.
        ForebayError: Loading or the engine failed; the message holds the cause.
    """
    find_devices()
    token = read_token(settings.token_env)
    listener = bind(settings.host, settings.port, token)
    with listener:
        server: uvicorn.Server | None = None

        def end() -> None:
            if server is not None:
                server.should_exit = True

        service = GeneratorService(
            model, WeightReader(weights), settings, on_failure=end, clock=clock, tracer=tracer
        )
        server = uvicorn.Server(_uvicorn_config(service, settings, token))
        announce(_address(listener))
        service.start()
        try:
            with _sigterm_means(end):
                server.run(sockets=[listener])
            failure = service.generator.failure  # before stop(), which ends whatever still loads
        finally:
            service.stop()
            tracer.close()
    if isinstance(failure, ForebayError):
        raise failure
    if failure is not None:
        raise GenerationError(f"the generator failed: {type(failure).__name__}: {failure}") from failure


def bind(host: str, port: int, token: str | None) -> socket.socket:
    """Return a bound socket.

    Raises:
        ConfigError: The address is open to the network and there is no token, is not an address of this
            machine, or its port is taken.
    """
    if token is None and not _is_loopback(host):
        raise ConfigError(
            "generator.host is open to the network and there is no token",
            got=host,
            limit="127.0.0.1",
            remedy="Set generator.token_env to an environment variable that holds one.",
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind((host, port))
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise ConfigError(
            f"generator cannot listen on {host}:{port}: {error.strerror or error}",
            remedy="Choose another generator.port (0 picks a free one), or end the process that holds it.",
        ) from error
    return listener


def model_fingerprint(model: ModelConfig) -> str:
    """Return a short hash of an architecture."""
    return xxhash.xxh3_64_hexdigest(msgspec.json.encode(model.to_hf(), order="deterministic"))


def _uvicorn_config(
    service: GeneratorService, settings: GeneratorSettings, token: str | None
) -> uvicorn.Config:
    routes = Routes(
        service.generator,
        watch=service.watcher.counters,
        compiles=lambda: len(service.compiles.programs),
        vocabulary=service.generator.limits.vocabulary,
        context=settings.context,
        max_body_bytes=settings.max_body_bytes,
        stall_timeout_s=settings.stall_timeout_s,
    )
    return uvicorn.Config(
        routes.app(token),
        lifespan="off",
        ws="none",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=round(settings.drain_timeout_s),
        timeout_keep_alive=_KEEP_ALIVE_S,
    )


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


@contextlib.contextmanager
def _sigterm_means(end: Callable[[], None]) -> Iterator[None]:
    """Have SIGTERM call `end`: before uvicorn listens to it, and when uvicorn raises it again at its end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, lambda signum, frame: end())
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
