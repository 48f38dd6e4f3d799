"""Keeps running vLLM servers at a run's newest weights, while they generate; no JAX is imported here.

An update: pause with requests kept, load the published files, label them, resume. The label moves last, so
that no token is ever labelled with weights that did not sample it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path
from typing import Final

import msgspec

from forebay.clock import Clock, SystemClock
from forebay.errors import GenerationError, PeerFailedError, WeightsError
from forebay.generation import http_wire as wire
from forebay.generation.settings import GeneratorSettings
from forebay.generation.vllm_loading import loading_of
from forebay.generation.vllm_server import VllmServer
from forebay.models.config import ModelConfig
from forebay.models.settings import LoraSettings
from forebay.trajectory import PolicyVersion
from forebay.weights.layout import MANIFEST_FILE, version_name
from forebay.weights.reader import WeightReader

UNKNOWN_LABEL: Final = "unknown"
_LABEL_CHECK_S = 1.0
_CLOCK = SystemClock()
log = logging.getLogger(__name__)


class WeightUpdate(msgspec.Struct, frozen=True, kw_only=True):
    """One version that a server took up.

    Args:
        address: The server.
        version: What it serves now.
        oldest_cache: The oldest version that may have written its KV cache.
        published_s: Wall clock of the publication.
        serving_s: From the publication until the server sampled with it.
        paused_s: How long it sampled nothing.
        load_s: Part of that: loading the files.
    """

    address: str
    version: PolicyVersion
    oldest_cache: PolicyVersion
    published_s: float
    serving_s: float
    paused_s: float
    load_s: float

    @property
    def summary(self) -> str:
        """A line for the log."""
        return (
            f"vLLM at {self.address} serves {wire.version_label(self.version)}, "
            f"{self.serving_s:.2f} s after its publication; paused for {self.paused_s:.2f} s"
        )


Report = Callable[[WeightUpdate], None]


class _Served(msgspec.Struct, frozen=True, kw_only=True):
    """What the server holds, with the lock that keeps its files for a roll-back."""

    version: PolicyVersion
    oldest_cache: PolicyVersion
    label: str
    directory: Path
    lock: ExitStack


def _oldest_cache(served: _Served | None, version: PolicyVersion, bound: int) -> PolicyVersion:
    """Return the oldest version that may have written what is cached, once `version` is served.

    Args:
        served: What the server held before; None if nobody knows.
        version: What it is about to serve.
        bound: Oldest cache that may stay, in versions.
    """
    if served is None:
        return version
    oldest = served.oldest_cache
    is_usable = oldest.incarnation == version.incarnation and version.version - oldest.version <= bound
    return oldest if is_usable else version


class WeightControl:
    """Keeps one server at the newest version of a weight directory.

    After every update, good or bad, the server is resumed, with one exception. A load that fails leaves vLLM
    without weights, and sampling on would kill it: the version before is loaded again, from files that were
    kept for it. While that fails too, the label is `unknown` and requests wait: until a later look mends it,
    or this control gives up and resumes.

    Args:
        server: The server.
        reader: Where weights are published.
        settings: Poll interval and patience.
        max_kv_staleness: The KV cache is dropped before an update would leave a part of it older than this.
        run_id: Whose weights these are; part of every label.
        model: What the server must serve.
        lora: The adapters that versions are of; None: versions are of whole weights.
        report: Called after every update.
        clock: Source of time.

    Attributes:
        failures: Updates that failed.
    """

    def __init__(
        self,
        server: VllmServer,
        reader: WeightReader,
        settings: GeneratorSettings,
        *,
        max_kv_staleness: int,
        run_id: str = "",
        model: ModelConfig | None = None,
        lora: LoraSettings | None = None,
        report: Report = lambda update: None,
        clock: Clock = _CLOCK,
    ) -> None:
        self._run_id, self._model, self._lora = run_id, model, lora
        self._loading = loading_of(reader, lora, run_id, server.address)
        self._server, self._reader, self._settings, self._clock = server, reader, settings, clock
        self._bound = 0 if settings.kv_across_versions == "recompute" else max_kv_staleness
        self._report = report
        self._served: _Served | None = None
        self._in_doubt, self._untrusted, self._is_untied = True, False, False
        self._checked_s = clock.monotonic_s()
        self.failures = 0

    @property
    def version(self) -> PolicyVersion | None:
        """The version that the server serves; None before the first."""
        return self._served.version if self._served is not None else None

    async def run(self, stop: asyncio.Event) -> None:
        """Update until `stop` is set.

        Consumes: published versions. Waits for: the poll interval, the server. Unblocked by: time, its
        answers, `stop`. Produces: updates; failures are counted and tried again.

        Raises:
            ConfigError: The server was not started with what forebay needs.
            PeerFailedError: Nothing was published within `first_weights_timeout_s`, or updates have failed
                for longer than `vllm_patience_s`.
        """
        try:
            await self._follow(stop)
        finally:
            if self._untrusted:
                with suppress(GenerationError):
                    await self._server.resume()

    async def _follow(self, stop: asyncio.Event) -> None:
        settings = self._settings
        started_s = self._clock.monotonic_s()
        failing_s: float | None = None
        while not stop.is_set():
            now_s = self._clock.monotonic_s()
            try:
                found = await self.look()
                failing_s = None
            except (GenerationError, WeightsError) as error:
                self.failures += 1
                failing_s = now_s if failing_s is None else failing_s
                log.warning("update of vLLM at %s failed: %s", self._server.address, error)
                if self._clock.monotonic_s() - failing_s > settings.vllm_patience_s:
                    raise PeerFailedError(
                        f"vLLM at {self._server.address} could not be updated for "
                        f"{settings.vllm_patience_s:g} s: {error}",
                        remedy="Look at its log and restart it; the run goes on from there.",
                    ) from error
                await self._clock.asleep(_LABEL_CHECK_S)
                continue
            if not found and now_s - started_s > settings.first_weights_timeout_s:
                raise PeerFailedError(
                    f"no weights were published within {settings.first_weights_timeout_s:g} s",
                    remedy="Look at the learner's log, or raise generator.first_weights_timeout_s.",
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(settings.poll_weights_s):
                    await stop.wait()

    async def look(self) -> bool:
        """Look once and update if there is reason to; return whether anything was ever published.

        Raises:
            WeightsError: What is published cannot be read.
            GenerationError: The server failed; the next look begins anew.
        """
        latest = self._reader.latest()
        if latest is None:
            return False
        if not self._in_doubt and self._clock.monotonic_s() - self._checked_s >= _LABEL_CHECK_S:
            await self._check_label()
        if self._in_doubt or self._served is None or latest > self._served.version:
            await self._update(max(latest, self._served.version) if self._served else latest)
        return True

    def close(self) -> None:
        """Let go of the files that were kept for a roll-back."""
        if self._served is not None:
            self._served.lock.close()

    async def _check_label(self) -> None:
        """Notice a server that was restarted, or that somebody else has labelled."""
        assert self._served is not None
        label = await self._server.label()
        self._checked_s = self._clock.monotonic_s()
        if label != self._served.label:
            log.warning("vLLM at %s serves %r instead of %r", self._server.address, label, self._served.label)
            self._in_doubt = True

    async def _update(self, version: PolicyVersion) -> None:
        """Bring the server to a version; whatever happens, it is resumed."""
        if self._in_doubt:
            self._is_untied = await self._server.check(self._model, self._lora)
        with ExitStack() as lock:
            open_files = self._loading.open(version, is_untied=self._is_untied)
            directory = await asyncio.to_thread(lock.enter_context, open_files)
            published_s = (self._reader.path / version_name(version) / MANIFEST_FILE).stat().st_mtime
            oldest = _oldest_cache(None if self._in_doubt else self._served, version, self._bound)
            label = wire.cache_label(version, oldest, self._run_id)
            is_fresh, self._in_doubt = self._in_doubt, True
            started_s = self._clock.monotonic_s()
            try:
                await self._server.pause()
                if oldest == version:
                    await self._server.reset_cache()
                load_s = await self._load(directory, label, is_fresh=is_fresh)
            finally:
                if not self._untrusted:
                    await self._server.resume()
            paused_s = self._clock.monotonic_s() - started_s
            self._in_doubt, self._checked_s = False, self._clock.monotonic_s()
            self.close()
            self._served = _Served(
                version=version, oldest_cache=oldest, label=label, directory=directory, lock=lock.pop_all()
            )
        self._say(published_s, paused_s, load_s)

    def _say(self, published_s: float, paused_s: float, load_s: float) -> None:
        assert self._served is not None
        update = WeightUpdate(
            address=self._server.address,
            version=self._served.version,
            oldest_cache=self._served.oldest_cache,
            published_s=published_s,
            serving_s=max(self._clock.wall_s() - published_s, 0.0),
            paused_s=paused_s,
            load_s=load_s,
        )
        log.info("%s", update.summary)
        self._report(update)

    async def _load(self, directory: Path, label: str, *, is_fresh: bool) -> float:
        """Load and label; return the seconds that loading took."""
        started_s = self._clock.monotonic_s()
        self._untrusted = True
        try:
            await self._loading.load(self._server, directory, is_fresh=is_fresh)
            load_s = self._clock.monotonic_s() - started_s
            await self._server.set_label(label)
        except (GenerationError, WeightsError):
            self._untrusted = not await self._took_back()
            raise
        self._untrusted = False
        return load_s

    async def _took_back(self) -> bool:
        """Go back to the version before; return False, and say so in the label, if that fails."""
        served = self._served
        try:
            if served is not None:
                await self._loading.load(self._server, served.directory, is_fresh=True)
                await self._server.set_label(served.label)
                log.warning("vLLM at %s was taken back to %s", self._server.address, served.label)
                return True
        except (GenerationError, WeightsError) as error:
            log.warning("vLLM at %s cannot be taken back: %s", self._server.address, error)
        with suppress(GenerationError):
            await self._server.set_label(UNKNOWN_LABEL)
        return False


async def control_vllm(
    weights: Path,
    settings: GeneratorSettings,
    *,
    max_kv_staleness: int,
    stop: asyncio.Event,
    token: str | None = None,
    run_id: str = "",
    model: ModelConfig | None = None,
    lora: LoraSettings | None = None,
    report: Report = lambda update: None,
    clock: Clock = _CLOCK,
) -> None:
    """Keep the servers of `settings.vllm` at the newest weights of a directory until `stop` is set.

    Args:
        weights: The weight directory, which the servers must see under the same path.
        settings: Addresses, waits and rules.
        max_kv_staleness: Oldest KV cache in use, in versions.
        stop: Ends it, after a running update; also set when one server has failed for good.
        token: Bearer token, as in vLLM's `--api-key`.
        run_id: Whose weights these are.
        model: What the servers must serve.
        lora: The adapters that versions are of; None: versions are of whole weights.
        report: Called after every update.
        clock: Source of time.

    Raises:
        ConfigError: A server was not started with what forebay needs.
        PeerFailedError: A server could not be updated for too long, or nothing was published.
    """
    reader = WeightReader(weights.absolute())
    async with AsyncExitStack() as stack:
        controls = []
        for address in settings.vllm:
            server = VllmServer(address, settings, token)
            stack.push_async_callback(server.close)
            control = WeightControl(
                server,
                reader,
                settings,
                max_kv_staleness=max_kv_staleness,
                run_id=run_id,
                model=model,
                lora=lora,
                report=report,
                clock=clock,
            )
            stack.callback(control.close)
            controls.append(control)
        # Never cancelled: a cut-off update could leave a server with weights that its label does not name.
        endings = await asyncio.gather(*(_until_failed(c, stop) for c in controls), return_exceptions=True)
        for ending in endings:
            if isinstance(ending, BaseException):
                raise ending


async def _until_failed(control: WeightControl, stop: asyncio.Event) -> None:
    try:
        await control.run(stop)
    finally:
        stop.set()
