"""What a run's learner begins with, and what it publishes of what it trains: whole weights, or adapters."""

from __future__ import annotations

import functools
import logging
from pathlib import Path
from typing import Any, Final

import jax
import numpy as np

from forebay.cli.learner_parts import initial_params
from forebay.cli.origins import Origin, check_origin
from forebay.cli.runs import Run
from forebay.config import RunConfig
from forebay.errors import ConfigError
from forebay.learner.checkpoint import load_best, load_step
from forebay.learner.reference import SavedState
from forebay.models.config import ModelConfig
from forebay.models.hf import to_hf_tensors
from forebay.models.lora import init_adapters
from forebay.models.lora_files import load_adapters
from forebay.models.lora_layout import num_adapter_parameters, to_peft_tensors
from forebay.models.params import Params, init_params
from forebay.models.settings import LoraSettings
from forebay.models.value_head import without_value_head
from forebay.trajectory import PolicyVersion
from forebay.weights.adapters import AdapterRecord, merge
from forebay.weights.publisher import WeightPublisher
from forebay.weights.shard import Tensors, digest_of

logger = logging.getLogger(__name__)
_FILE: Final = "base.json"
# Master weight, gradient and two moments of Adam, float32.
_TRAINED_BYTES: Final = 16
# New adapters must not be drawn from the numbers that a new model is drawn from.
_ADAPTER_STREAM: Final = 1_000_000


class LearnerWeights:
    """Host weights of a run's learner.

    Args:
        run: The run.

    Attributes:
        frozen: The parameters of the model where adapters on it are trained, in the type of the
            computation; nothing where it is trained itself. `TrainPrograms.frozen` takes them.
        trained: What training begins with: the parameters of the model, or adapters on it.

    Raises:
        ConfigError: The model is not the one that the run's adapters were started on.
        ModelError: The model or the adapters to begin with are missing, damaged, or do not fit.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._published_base: str | None = None
        self._base: Tensors = {}
        self.frozen: Params = {}
        self.lora = run.config.model.adapters
        if self.lora is None:
            self.trained = initial_params(run)
            return
        self.frozen, self._base = frozen_model(run)
        self.trained = initial_adapters(run.config, run.model, self.lora)
        itemsize = np.dtype(run.config.compute.compute_dtype).itemsize
        logger.info(described_saving(run, self.lora, itemsize))

    def tensors(self, trained: Params) -> Tensors:
        """Return what a version of trained host parameters is published as, by name."""
        if self.lora is None:
            return to_hf_tensors(trained, self._run.model)
        if self._run.config.weights.adapters == "merged":
            return merged_weights(self._base, trained, self._run.model, self.lora)
        return to_peft_tensors(without_value_head(trained), self._run.model, self.lora)

    def digest(self, trained: Params) -> str:
        """Return the digest that host parameters are published under."""
        return digest_of(self.tensors(trained))

    def publish(self, publisher: WeightPublisher, version: PolicyVersion, trained: Params) -> None:
        """Publish a version; where it is of adapters only, the model before it, if it is not there yet."""
        adapter = None
        if self.lora is not None and self._run.config.weights.adapters == "separate":
            if self._published_base is None:
                self._published_base = publisher.publish_base(self._base)
            adapter = AdapterRecord(base=self._published_base, scale=self.lora.scale)
        publisher.publish(version, self.tensors(trained), adapter=adapter)


def initial_adapters(config: RunConfig, model: ModelConfig, lora: LoraSettings) -> Params:
    """Return the adapters that training begins with: loaded, or drawn from the run's seed.

    Args:
        config: Gives the seed.
        model: What they are on.
        lora: Which they are.

    Raises:
        ConfigError: They are others than the settings ask for.
        ModelError: They are missing, damaged, or do not fit the model.
    """
    if lora.path is not None:
        return load_adapters(Path(lora.path), model, lora)
    key = jax.random.fold_in(jax.random.key(config.run.seed), _ADAPTER_STREAM)
    drawn: Params = jax.device_get(init_adapters(model, lora, key))
    return drawn


def frozen_model(run: Run) -> tuple[Params, Tensors]:
    """Return the model under a run's adapters: host parameters in the type of the computation, and tensors.

    It is noted in the run directory when the run begins.

    Args:
        run: One that trains adapters.

    Raises:
        ConfigError: It is not the model that the run's adapters were started on.
        ModelError: It is missing or damaged.
    """
    dtype = np.dtype(run.config.compute.compute_dtype)
    params = jax.tree.map(lambda leaf: np.asarray(leaf, dtype), initial_params(run))
    tensors = to_hf_tensors(params, run.model)
    origin = Origin(run.config.model.path or "run.seed", digest_of(tensors))
    check_origin(run.layout.path / _FILE, origin, "the model under the adapters")
    return params, tensors


def merged_weights(base: Tensors, adapters: Params, model: ModelConfig, lora: LoraSettings) -> Tensors:
    """Return the whole weights that compute what a model with trained adapters computes.

    Args:
        base: The model's tensors.
        adapters: Their host tree; a value head beside them is left out.
        model: What they are on.
        lora: Which they are.
    """
    return merge(base, to_peft_tensors(without_value_head(adapters), model, lora), lora.scale)


def described_saving(run: Run, lora: LoraSettings, base_bytes: int) -> str:
    """Say in a line what is trained, and what that takes in device memory, of all devices together.

    Args:
        run: Its model is asked.
        lora: The adapters.
        base_bytes: Of one number of the frozen model.
    """
    whole, adapters = run.model.num_parameters, num_adapter_parameters(run.model, lora)
    used = base_bytes * whole + _TRAINED_BYTES * adapters
    return (
        f"LoRA: {adapters:,} numbers are trained beside {whole:,} frozen ones; weights, gradients and "
        f"moments take {used / 1e6:,.1f} MB in place of {_TRAINED_BYTES * whole / 1e6:,.1f} MB"
    )


def saved_parameters(run: Run, step: int | None) -> tuple[PolicyVersion, Params]:
    """Return the trained parameters of a checkpoint, and their version, on a machine of any kind.

    Args:
        run: The run.
        step: Which checkpoint; None for the one with the best evaluation.

    Raises:
        CheckpointError: There is no such checkpoint, none was evaluated, or it is damaged.
    """
    lora = run.config.model.adapters
    draw = functools.partial(init_params, run.model)
    if lora is not None:
        draw = functools.partial(init_adapters, run.model, lora)
    # Arrays of optimizer, reference and critic are not read, and no mesh is needed.
    wanted: Any = SavedState(jax.eval_shape(draw, jax.random.key(0)), None, None)  # type: ignore[arg-type]
    shelf = run.checkpoints
    restored = (
        load_best(shelf, wanted, part=True) if step is None else load_step(shelf, step, wanted, part=True)
    )
    return restored.cursor.version, restored.state.params


def saved_weights(run: Run, step: int | None) -> tuple[PolicyVersion, Tensors]:
    """Return the whole weights of a checkpoint, and their version; see `saved_parameters`.

    Adapters are merged into the model; those that training began with are not needed any more.

    Raises:
        CheckpointError: There is no such checkpoint, none was evaluated, or it is damaged.
        ConfigError: The model under a run's adapters is another one now.
    """
    version, params = saved_parameters(run, step)
    lora = run.config.model.adapters
    if lora is None:
        return version, to_hf_tensors(params, run.model)
    return version, merged_weights(frozen_model(run)[1], params, run.model, lora)


def newest_step(run: Run) -> int:
    """Return the step of a run's newest checkpoint.

    Raises:
        ConfigError: There is none yet.
    """
    shelf = run.checkpoints
    steps = shelf.folders()
    if not steps:
        raise ConfigError(f"no checkpoint in {shelf}", remedy="Wait for learner.checkpoint_every batches.")
    return max(steps)
