"""What an audit measures generator, weights, store and learner on: a run that lives as long as it does."""

from __future__ import annotations

import os
import sys
import tempfile
from contextlib import ExitStack
from functools import cached_property
from pathlib import Path
from typing import Final, Self

from forebay.chat import Chat
from forebay.cli.audit_jobs import Job, Said, started
from forebay.cli.audit_parts import Say
from forebay.cli.preflight import check_token, require_learner_packages
from forebay.cli.roles import base_address, free_port
from forebay.cli.runs import Run, own_run, resolve_model
from forebay.clock import Clock
from forebay.config import RunConfig
from forebay.errors import ConfigError, PeerFailedError
from forebay.generation.settings import ClientSettings
from forebay.launch import ProcessSpec, divide_cpus
from forebay.launch.child import Child
from forebay.models.config import ModelConfig
from forebay.planner.profile_records import Traffic
from forebay.store.file_systems import existing
from forebay.telemetry.settings import TelemetrySettings

_STOP_GRACE_S: Final = 10.0
_HERE: Final = "127.0.0.1"


class Rig:
    """A run of a configuration, made when it is first needed and removed at the end.

    Args:
        config: What will be run.
        given: Address of a generator that runs already; None to start one.
        traffic: What episodes ask a generator, as far as that is known.
        clock: Source of time.

    Attributes:
        traffic: The same, and what has been measured since.
    """

    def __init__(
        self, config: RunConfig, given: str | None, traffic: dict[str, Traffic], clock: Clock
    ) -> None:
        self.config, self.clock = config, clock
        self.given = given or (config.generator.vllm[0] if config.generator.vllm else None)
        self.traffic = traffic
        self._stack = ExitStack()
        self._child: Child | None = None
        self._address = self.given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @cached_property
    def cpus(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The learner's cores and everybody else's, divided as `forebay train` divides them."""
        launch = self.config.launch
        return divide_cpus(sorted(os.sched_getaffinity(0)), launch.learner_cpus, launch.other_cpus)

    @cached_property
    def run(self) -> Run:
        """The run, with a directory beside where the real one will be."""
        require_learner_packages()
        place = existing(self.config.run.path.parent)
        try:
            parent = tempfile.TemporaryDirectory(prefix=".forebay-audit-", dir=place)
        except OSError as error:
            raise ConfigError(
                f"cannot write to {place}, where the run would lie: {error.strerror}",
                remedy="Set run.directory to a directory that you may write to.",
            ) from None
        path = Path(self._stack.enter_context(parent)) / "run"
        directory, run = own_run(measurable(self.config), path)
        self._stack.enter_context(directory)
        return run

    @cached_property
    def model(self) -> tuple[ModelConfig, Chat]:
        """The model's shape and its tokenizer."""
        return resolve_model(self.config)

    @property
    def client_settings(self) -> ClientSettings:
        """How the generator is called."""
        model = self.model[0]
        return ClientSettings(
            token_env=self.config.generator.token_env,
            vocabulary=model.num_real_tokens,
            padded_vocabulary=model.vocab_size,
        )

    def address(self, say: Say) -> str:
        """Return where a generator answers, or will; one is started if none was given.

        Raises:
            ConfigError: The configuration cannot be served here.
            PeerFailedError: Its first weights could not be made.
        """
        if self._address is None:
            check_token(self.config)
            say("generator: making its first weights, then compiling")
            with started(Job(kind="weights", run=str(self.run.layout.path)), self.cpus[1]) as messages:
                for message in messages:
                    if isinstance(message, Said):
                        say(message.text)
            self._start()
        assert self._address is not None
        return self._address

    def watch(self) -> None:
        """Raise if the generator that was started has ended.

        Raises:
            PeerFailedError: It has; the message holds the cause.
        """
        child = self._child
        if child is None or child.process is None:
            return
        if (code := child.process.poll()) is not None:
            raise PeerFailedError(child.cause(code))

    def stop_generator(self) -> None:
        """End the generator that was started here, so that the rest is measured alone."""
        if self._child is not None:
            self._child.stop(_STOP_GRACE_S)
            self._child, self._address = None, None

    def _start(self) -> None:
        port, layout = free_port(), self.run.layout
        argv = (sys.executable, "-m", "forebay", "generate", str(layout.path))
        spec = ProcessSpec(
            name="generator", argv=(*argv, "--host", _HERE, "--port", str(port)), cpus=self.cpus[1]
        )
        self._child = Child(spec, layout.logs / "audit-generator.log")
        self._child.start(self.clock.monotonic_s())
        self._stack.callback(self.stop_generator)
        self._address = base_address(_HERE, port)


def measurable(config: RunConfig) -> RunConfig:
    """Return a configuration of which single parts can be measured: nothing in it belongs to the real run."""
    siblings = "all" if config.objective.siblings == "finished" else config.objective.siblings
    return config.model_copy(
        update={
            "generator": config.generator.model_copy(update={"vllm": ()}),
            "store": config.store.model_copy(update={"path": None, "engine": "lmdb"}),
            # A batch is timed once; who plans multiplies by the epochs.
            "batching": config.batching.model_copy(update={"epochs": 1}),
            "objective": config.objective.model_copy(update={"siblings": siblings}),
            "telemetry": TelemetrySettings(),
        }
    )
