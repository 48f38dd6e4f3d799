"""The weights' part of an audit: from a publication to the first token that a generator samples with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
from rich.console import Console

from forebay.cli.asking import wait_for_generator
from forebay.cli.audit_parts import PartName, Say, make_origin, times_table
from forebay.cli.audit_rig import Rig
from forebay.cli.runs import Run
from forebay.clock import Clock
from forebay.errors import ConfigError, PeerFailedError
from forebay.generation.client import HttpGenerator, read_token
from forebay.generation.protocol import GenerationRequest, Generator
from forebay.planner.audit_calls import times
from forebay.planner.profile import Profile, WeightsProfile
from forebay.planner.replaying import Replayer
from forebay.planner.traffic import made_up
from forebay.report.text import size
from forebay.trajectory import PolicyVersion
from forebay.weights.layout import Manifest, version_name
from forebay.weights.publisher import WeightPublisher
from forebay.weights.reader import WeightReader
from forebay.weights.shard import Tensors, decode

_START_S: Final = 600.0
_PATIENCE_S: Final = 300.0
_LEAST: Final = 3
_MOST: Final = 200
_PROMPT_TOKENS: Final = 64
_ANSWER_TOKENS: Final = 64
_NUM_CONVERSATIONS: Final = 16


class WeightsPart:
    """Published weights on their way to a generator that was started here.

    Args:
        rig: Has the generator and the directory that it follows.
        limit_s: Time to measure.
        command: How this was asked for.
        clock: Source of time.
    """

    name: PartName = "weights"

    def __init__(self, rig: Rig, limit_s: float, command: str, clock: Clock) -> None:
        self._rig, self._limit_s, self._command, self._clock = rig, limit_s, command, clock
        self._began_s = clock.wall_s()
        self._publish_s: list[float] = []
        self._first_token_s: list[float] = []
        self._num_bytes = self._requests = 0

    def measure(self, say: Say) -> None:
        """Publish version after version; see `Part.measure`."""
        if self._rig.given is not None:
            raise ConfigError(
                "weights can only be published to a generator that the audit starts",
                got=self._rig.given,
                remedy="Leave out --generator (and generator.vllm), or choose other parts with --part.",
            )
        self._began_s = self._clock.wall_s()
        address = self._rig.address(say)
        try:
            asyncio.run(self._measure(address, say))
        finally:
            self._rig.stop_generator()

    def profile(self) -> Profile | None:
        """Return the weights' part; see `Part.profile`."""
        if not self._first_token_s:
            return None
        return Profile(
            weights=WeightsProfile(
                origin=make_origin(self._clock, self._began_s, self._command),
                first_token_s=times(self._first_token_s),
                num_bytes=self._num_bytes,
                publish_s=times(self._publish_s),
                requests=self._requests,
            )
        )

    def show(self, console: Console) -> None:
        """Print the page; see `Part.show`."""
        if self._first_token_s:
            heading = (
                f"\nweights, versions of {size(self._num_bytes)}, with {self._requests} requests running"
            )
            console.print(heading, style="bold", markup=False)
            rows = [
                ("visible", times(self._publish_s)),
                ("first token", times(self._first_token_s)),
            ]
            console.print(times_table("from hand-over until", rows))

    def as_json(self) -> dict[str, Any]:
        """Return what was found; see `Part.as_json`."""
        found = self.profile()
        return {"weights": None if found is None else msgspec.to_builtins(found.weights)}

    async def _measure(self, address: str, say: Say) -> None:
        settings = self._rig.client_settings
        client = HttpGenerator(address, settings=settings, token=read_token(settings.token_env))
        busy: asyncio.Task[None] | None = None
        try:
            info = await wait_for_generator(client, self._rig.watch, _START_S)
            asked = made_up(_NUM_CONVERSATIONS, _PROMPT_TOKENS, _ANSWER_TOKENS, info.vocabulary, info.context)
            # Half of the slots at work: weights are prepared beside that, and a slot is free for their token.
            self._requests = info.slots // 2
            replayer = Replayer(client, asked, vocabulary=info.vocabulary, patience_s=_PATIENCE_S)
            if self._requests:
                busy = asyncio.create_task(replayer.keep_busy(self._requests))
            say(f"weights: publishing for {self._limit_s:.3g} s")
            await self._publish_again_and_again(client, asked[0][0], info.version)
        finally:
            if busy is not None:
                busy.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await busy
            await client.close()

    async def _publish_again_and_again(
        self, client: HttpGenerator, request: GenerationRequest, version: PolicyVersion
    ) -> None:
        """Publish, and wait for the first token; at moments that the generator's looks do not follow."""
        run = self._rig.run
        manifest, tensors = _published(run)
        self._num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        publisher = WeightPublisher(run.layout.weights, run_id=run.run_id, settings=run.config.weights)
        rng = random.Random(0)
        give_up_s = time.monotonic() + self._limit_s
        while len(self._first_token_s) < _MOST:
            if time.monotonic() >= give_up_s and len(self._first_token_s) >= _LEAST:
                return
            await asyncio.sleep(2 * run.config.generator.poll_weights_s * rng.random())
            version = version._replace(version=version.version + 1)
            publish = functools.partial(publisher.publish, version, tensors, adapter=manifest.adapter)
            published_s, first_token_s = await time_publication(client, publish, request, version)
            self._first_token_s.append(first_token_s)
            self._publish_s.append(published_s)


async def time_publication(
    generator: Generator,
    publish: Callable[[], Path],
    request: GenerationRequest,
    version: PolicyVersion,
) -> tuple[float, float]:
    """Publish a version; return the time until it is visible, and until its first token is there, in seconds.

    Args:
        generator: Who follows the publications.
        publish: Publishes it.
        request: What is asked meanwhile.
        version: Which.

    Raises:
        PeerFailedError: The generator does not take it up.
        OSError: It cannot be written.
    """
    wanted = msgspec.structs.replace(
        request,
        request_id=f"weights-{version.version}",
        max_tokens=1,
        min_version=version,
        deadline_s=_PATIENCE_S,
    )
    # It waits in the queue already when the weights come, as the calls of a synchronous run do.
    answer = asyncio.create_task(generator.generate(wanted))
    await asyncio.sleep(0)
    began_s = time.monotonic()
    try:
        await asyncio.to_thread(publish)
        published_s = time.monotonic() - began_s
        completion = await answer
        first_token_s = time.monotonic() - began_s
    finally:
        answer.cancel()
        await asyncio.gather(answer, return_exceptions=True)
    if completion.finish == "deadline":
        raise PeerFailedError(
            f"the generator did not take up version {version.version}", limit=f"{_PATIENCE_S:g} s"
        )
    return published_s, first_token_s


def _published(run: Run) -> tuple[Manifest, Tensors]:
    """Return what the newest version says of itself, and its tensors as they lie there: adapters or all."""
    reader = WeightReader(run.layout.weights)
    version = reader.latest()
    assert version is not None
    manifest, directory = reader.manifest(version), run.layout.weights / version_name(version)
    tensors: Tensors = {}
    for shard in manifest.shards:
        tensors |= decode(np.fromfile(directory / shard.name, np.uint8), shard.name)
    return manifest, tensors
