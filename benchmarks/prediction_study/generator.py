"""A generator that stands for hardware of its own: the product's server and queue, on a device that waits.

    python -m benchmarks.prediction_study.generator RUN --port 8123 --block-s 0.04

Queue, slots, HTTP, versions and the loading of published weights are the product's. Only the device is
emulated: a decode block takes a fixed time whatever the number of sequences, and samples random tokens.
"""

from __future__ import annotations

import argparse
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import uvicorn

from forebay.cli.runs import Run, join_run
from forebay.cli.tracing import open_tracer
from forebay.clock import SystemClock
from forebay.generation.local import LocalGenerator
from forebay.generation.protocol import GeneratorInfo
from forebay.generation.scheduler import Scheduler
from forebay.generation.server import Routes
from forebay.generation.slots import DecodeBatch, Decoded, PrefillChunk
from forebay.generation.watcher import WeightWatcher
from forebay.launch.placement import settle_in
from forebay.telemetry.logs import setup_logging
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader

_END_PROBABILITY: Final = 0.1
_KEEP_ALIVE_S: Final = 75


class WaitingDevice:
    """Implements `Executor` without a model: it waits, and samples evenly among the characters.

    Args:
        block_s: Time of a decode block.
        block_tokens: Tokens of a block.
        vocabulary: Token ids there are.
        seed: Seed of the tokens.
    """

    def __init__(self, block_s: float, block_tokens: int, vocabulary: int, seed: int) -> None:
        self._block_s, self._block_tokens, self._vocabulary = block_s, block_tokens, vocabulary
        self._rng = np.random.default_rng(seed)
        self._first_character = 8  # the special tokens lie before it

    def load(self, weights: Any) -> None:
        """Take new weights, which change nothing."""

    def prefill(self, chunks: Sequence[PrefillChunk]) -> None:
        """Read prompts, which takes no time of its own: it is part of the block."""

    def decode(self, batch: DecodeBatch) -> Decoded:
        """Wait for the time of a block; every sequence ends its turn with the same probability per token."""
        time.sleep(self._block_s)
        shape = (self._block_tokens, len(batch.tokens))
        tokens = self._rng.integers(self._first_character, self._vocabulary, shape, dtype=np.int32)
        ends = self._rng.random(shape) < _END_PROBABILITY
        tokens = np.where(ends, batch.stops[:, 0], tokens).astype(np.int32)
        first_end = np.where(ends.any(axis=0), ends.argmax(axis=0) + 1, self._block_tokens)
        counts = np.minimum(first_end, batch.remaining).astype(np.int32)
        logprobs = np.full(shape, -np.log(self._vocabulary), np.float32)
        return Decoded(tokens, logprobs, counts)

    def save(self, slot: int, length: int) -> None:
        """Keep nothing of a slot."""

    def restore(self, row: Any, slot: int) -> None:
        """Take nothing back."""


def serve(run: Run, port: int, block_s: float) -> None:
    """Serve until SIGTERM."""
    settings, clock = run.config.generator, SystemClock()
    tracer = open_tracer(run, "generator")

    def build() -> Scheduler:
        version, _ = watcher.first(settings.first_weights_timeout_s, clock)
        watcher.start()
        device = WaitingDevice(block_s, settings.decode_block, run.model.num_real_tokens, run.config.run.seed)
        return Scheduler(device, settings, version, clock, tracer)

    def deliver(version: PolicyVersion, tensors: Mapping[str, np.ndarray]) -> None:
        generator.load(version, None)

    watcher = WeightWatcher(WeightReader(run.layout.weights), deliver, settings.poll_weights_s)
    info = GeneratorInfo(
        version=PolicyVersion(0, 0),
        context=settings.context,
        vocabulary=run.model.num_real_tokens,
        model="waiting-device",
        slots=settings.slots,
    )
    generator = LocalGenerator(build, info, clock=clock)
    routes = Routes(
        generator,
        watch=watcher.counters,
        compiles=lambda: 0,
        vocabulary=info.vocabulary,
        context=settings.context,
        max_body_bytes=settings.max_body_bytes,
        stall_timeout_s=settings.stall_timeout_s,
    )
    generator.start()
    try:
        uvicorn.run(
            routes.app(None),
            host="127.0.0.1",
            port=port,
            lifespan="off",
            ws="none",
            access_log=False,
            log_config=None,
            log_level="warning",
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
    finally:
        watcher.stop()
        generator.stop()
        tracer.close()


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--block-s", type=float, required=True)
    options = parser.parse_args()
    settle_in()
    setup_logging("generator")
    logging.getLogger("asyncio").setLevel(logging.WARNING)
    serve(join_run(options.run), options.port, options.block_s)


if __name__ == "__main__":
    main()
