"""The body of `forebay sft`: demonstrations, batches, and the learner's own programs with cross-entropy."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator
from pathlib import Path

import jax

from forebay.batching.batch import Batch
from forebay.batching.ladder import build_ladder
from forebay.batching.packing import Bucket
from forebay.batching.supervised import (
    Demonstration,
    build_supervised_batch,
    check_lengths,
    shuffled_batches,
)
from forebay.chat import Chat, Message, supervised
from forebay.cli.learner_weights import initial_adapters
from forebay.cli.preflight import check_model_files
from forebay.cli.roles import keep_memory_on_cpus
from forebay.cli.runs import builtin_or_path, model_files, resolve_model
from forebay.config import RunConfig
from forebay.envs.demonstrations import make_demonstrations, read_demonstrations
from forebay.envs.registry import load_task_sets
from forebay.errors import ConfigError
from forebay.learner.programs import TrainPrograms
from forebay.learner.train_step import snapshot
from forebay.models.checkpoint_io import load_model, save_model
from forebay.models.config import ModelConfig
from forebay.models.hf import to_hf_tensors
from forebay.models.lora_layout import to_peft_tensors
from forebay.models.params import Params, init_params
from forebay.models.router_loss import router_loss_weights
from forebay.models.sharding import make_mesh
from forebay.objectives.build import build_objective
from forebay.objectives.denominators import batch_denominator
from forebay.objectives.inputs import summarize
from forebay.objectives.settings import ObjectiveSettings
from forebay.telemetry.files import require_place
from forebay.trajectory import PolicyVersion
from forebay.weights.adapters import merge

logger = logging.getLogger(__name__)
_OBJECTIVE = ObjectiveSettings(loss="cross_entropy")
_REPORT_EVERY = 20


def imitate(config: RunConfig, to: Path) -> None:
    """Train on demonstrations and write the model.

    Args:
        config: Model, demonstrations, batching, optimizer and seed are used.
        to: Model directory to make.

    Raises:
        ConfigError: The directory exists, there is no device, or there is nothing to imitate.
    """
    require_place(to, is_new=True)
    keep_memory_on_cpus()
    check_model_files(config)
    model, chat = resolve_model(config)
    examples = demonstrations(config, chat)
    if not examples:
        raise ConfigError("nothing to imitate: the demonstrations hold no assistant message")
    check_lengths(examples, config.batching)
    params, lora = initial(config, model), config.model.adapters
    trained = train(config, model, params, examples)
    save_model(
        to,
        model,
        to_hf_tensors(trained, model)
        if lora is None
        else merge(to_hf_tensors(params, model), to_peft_tensors(trained, model, lora), lora.scale),
        files=model_files(config),
        dtype=config.supervised.dtype,
    )
    logger.info("wrote %s: %d parameters", to, model.num_parameters)


def demonstrations(config: RunConfig, chat: Chat) -> list[Demonstration]:
    """Return what is imitated, tokenized; a conversation that forks gives several."""
    examples = []
    for number, messages in enumerate(_conversations(config)):
        for branch, sequence in enumerate(supervised(chat, messages)):
            examples.append(
                Demonstration(
                    name=f"{number}.{branch}", tokens=sequence.tokens, loss_mask=sequence.action_mask()
                )
            )
    return examples


def initial(config: RunConfig, model: ModelConfig) -> Params:
    """Return the parameters to begin with: loaded, or drawn from the seed."""
    if config.model.path is None:
        drawn: Params = jax.device_get(init_params(model, jax.random.key(config.run.seed)))
        return drawn
    return load_model(builtin_or_path(config.model.path), num_real_tokens=model.num_real_tokens)[1]


def train(config: RunConfig, model: ModelConfig, params: Params, examples: list[Demonstration]) -> Params:
    """Return host parameters, or adapters on them, after `supervised.epochs` passes over the demonstrations.

    Args:
        config: Of the run.
        model: What is trained, or what adapters are trained on.
        params: What it begins with.
        examples: What is imitated.
    """
    lora = config.model.adapters
    ladder = build_ladder(config.batching, config.mesh.row_multiple, config.mesh.length_multiple)
    programs = TrainPrograms(
        model,
        make_mesh(config.mesh),
        config.optimizer,
        build_objective(_OBJECTIVE),
        config.compute,
        of_routers=router_loss_weights(config.model, model.experts),
        lora=lora,
    )
    programs.warm_up(ladder)
    programs.frozen.hold({} if lora is None else params)
    begun = params if lora is None else initial_adapters(config, model, lora)
    state, accumulator = programs.init_state(begun), programs.zeros()
    for step, batch in enumerate(_batches(config, examples, ladder)):
        for micro in batch.micro_batches:
            rows = programs.place(micro.rows)
            accumulator = programs.accumulate(
                state.params, accumulator, rows, batch.denominator, batch.num_tokens
            )
        state, accumulator, stats = programs.apply(state, accumulator)
        if step % _REPORT_EVERY == 0:
            logger.info("step %d: loss %.4f nats a token", step, summarize(jax.device_get(stats.sums)).loss)
    trained: Params = snapshot(state.params)
    return trained


def _conversations(config: RunConfig) -> Iterator[tuple[Message, ...]]:
    settings = config.supervised
    if settings.demonstrations:
        yield from read_demonstrations(Path(settings.demonstrations))
        return
    environment = next(iter(config.environment.values()))
    tasks = load_task_sets(environment).train[: settings.num_demonstrations]
    yield from make_demonstrations(environment, tasks, noise=settings.noise, seed=config.run.seed)


def _batches(config: RunConfig, examples: list[Demonstration], ladder: tuple[Bucket, ...]) -> Iterator[Batch]:
    steps = shuffled_batches(
        examples,
        epochs=config.supervised.epochs,
        batch_tokens=config.supervised.batch_tokens,
        seed=config.run.seed,
    )
    for step, chosen in enumerate(steps):
        batch = build_supervised_batch(
            chosen,
            now=PolicyVersion(0, step),
            settings=config.batching,
            ladder=ladder,
            denominator=functools.partial(batch_denominator, _OBJECTIVE),
        )
        if not batch.empty:
            yield batch
