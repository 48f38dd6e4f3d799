"""What the learner's programs are made of before they are compiled: traced functions and abstract arrays.

Nothing here needs an accelerator or memory for a model: a mesh may be of devices that are only described.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array

from forebay.batching.rows import ANNOTATIONS, TrainRows, make_rows
from forebay.learner.optimizer import OptimizerSettings, make_schedule
from forebay.learner.program_table import Shape
from forebay.learner.train_step import (
    Accumulator,
    TrainState,
    add_gradients,
    apply_gradients,
    new_state,
    row_logprobs,
    row_states,
)
from forebay.models.config import ModelConfig
from forebay.models.lora import abstract_adapters, adapter_specs, with_adapters
from forebay.models.lora_layout import check_targets
from forebay.models.moe import RouterSums
from forebay.models.params import Params, abstract_params
from forebay.models.router_loss import RouterLoss
from forebay.models.settings import ComputeSettings, LoraSettings
from forebay.models.sharding import (
    Axes,
    check_rows,
    parameter_specs,
    row_spec,
    shardings,
    split_specs,
)
from forebay.models.value_head import (
    state_values,
    value_head_shapes,
    value_head_specs,
    without_value_head,
)
from forebay.objectives.inputs import LossSums
from forebay.objectives.surrogate import Objective, ValueLoss

Score = Callable[[Params, Params, TrainRows], Array]

WHOLE = PartitionSpec()
# Partition specs stand where the arrays of these records would.
_EACH_WHOLE: Any = [WHOLE]
_SUMS = LossSums(*_EACH_WHOLE * len(LossSums._fields))
_ROUTED = RouterSums(*_EACH_WHOLE * len(RouterSums._fields))


def _scores(
    config: ModelConfig, lora: LoraSettings | None, compute: ComputeSettings, axes: Axes
) -> tuple[Score, Score]:
    """Return what gives rows their logprobs, and the values of their states."""

    def logprobs(frozen: Params, params: Params, rows: TrainRows) -> Array:
        params = with_adapters(frozen, params, lora)
        hidden, _ = row_states(params, rows, config, compute, axes)
        return row_logprobs(params, hidden, rows, config, compute, axes)[0]

    def values(frozen: Params, params: Params, rows: TrainRows) -> Array:
        params = with_adapters(frozen, params, lora)
        hidden, _ = row_states(params, rows, config, compute, axes)
        return state_values(params, hidden, rows.tokens.shape, axes)

    return logprobs, values


def trained_specs(config: ModelConfig, lora: LoraSettings | None, *, has_critic: bool) -> dict[str, Any]:
    """Return partition specs of what is trained: the model or adapters, and a critic's value head.

    Raises:
        ConfigError: The model has no projection of an adapter's name.
    """
    if lora is not None:
        check_targets(lora, config)
    specs = parameter_specs(config) if lora is None else adapter_specs(lora)
    return specs | (value_head_specs() if has_critic else {})


def jit_row_programs(
    config: ModelConfig,
    mesh: Mesh,
    split: tuple[dict[str, Any], dict[str, Any]],
    objective: Objective,
    value_loss: ValueLoss | None,
    of_routers: RouterLoss,
    lora: LoraSettings | None,
    compute: ComputeSettings,
) -> dict[str, Any]:
    """Wrap what `train_step` does with rows in shard_map and jit, with what it donates.

    Args:
        config: The model.
        mesh: From `make_mesh`.
        split: Partition specs of the weights that are not trained, and of what is.
        objective: What is minimized.
        value_loss: What a critic is trained by; None without one.
        of_routers: What routers of experts are trained by, beyond the objective.
        lora: The adapters that are trained; None if the model is.
        compute: Types, remat, attention and the chunk of the loss.

    Returns:
        The functions `accumulate`, `logprobs` and `values`.
    """
    axes = Axes.of(mesh)
    frozen, specs, rows_spec = split_specs(mesh, (*split, row_spec()))
    accumulated = Accumulator(specs, _SUMS, None if config.experts is None else _ROUTED)

    logprobs, values = _scores(config, lora, compute, axes)
    gradients = functools.partial(
        add_gradients,
        config=config,
        objective=objective,
        value_loss=value_loss,
        of_routers=of_routers,
        lora=lora,
        compute=compute,
        axes=axes,
    )

    def scoring(score: Score, specs: dict[str, Any]) -> Any:
        # Hosts look at scores: each process of several needs all of them.
        whole = shardings(mesh, WHOLE) if jax.process_count() > 1 else None
        mapped = jax.shard_map(score, mesh=mesh, in_specs=(frozen, specs, rows_spec), out_specs=rows_spec)
        return jax.jit(mapped, out_shardings=whole)

    return {
        "accumulate": jax.jit(
            jax.shard_map(
                gradients,
                mesh=mesh,
                in_specs=(frozen, specs, accumulated, rows_spec, WHOLE, WHOLE),
                out_specs=accumulated,
            ),
            donate_argnums=2,
        ),
        "logprobs": scoring(logprobs, without_value_head(specs)),
        "values": scoring(values, specs),
    }


def jit_update(
    mesh: Mesh,
    state: TrainState,
    accumulator: Accumulator,
    optimizer: optax.GradientTransformation,
    settings: OptimizerSettings,
) -> Any:
    """Wrap the optimizer's step in jit, with what it donates."""
    update = functools.partial(
        apply_gradients,
        optimizer=optimizer,
        schedule=make_schedule(settings),
        ess_scaling=settings.ess_scaling,
    )
    return jax.jit(
        update,
        donate_argnums=(0, 1),
        out_shardings=(shardings_of(state), shardings_of(accumulator), shardings(mesh, WHOLE)),
    )


def abstract_state(
    config: ModelConfig,
    mesh: Mesh,
    optimizer: optax.GradientTransformation,
    specs: dict[str, Any],
    lora: LoraSettings | None = None,
) -> TrainState:
    """Return shapes, types and shardings of a train state; moments are split as their parameters are.

    Args:
        config: The model.
        mesh: From `make_mesh`.
        optimizer: Makes the optimizer's state.
        specs: Partition specs of what is trained, a value head's too if there is one.
        lora: The adapters that are trained; None if the model is.
    """
    params = abstract_params(config, jnp.float32) if lora is None else abstract_adapters(config, lora)
    for name, head_shape in value_head_shapes(config).items():
        if name in specs:
            params[name] = jax.ShapeDtypeStruct(head_shape, jnp.float32)
    state = jax.eval_shape(functools.partial(new_state, optimizer=optimizer), params)
    opt_specs = optax.tree_map_params(
        optimizer, lambda _, spec: spec, state.opt_state, specs, transform_non_params=lambda _: WHOLE
    )
    # PartitionSpecs stand where the arrays of a state would.
    layout = state._replace(params=specs, opt_state=opt_specs, step=WHOLE)
    return _with_shardings(state, shardings(mesh, layout))


def abstract_accumulator(config: ModelConfig, params: Params, mesh: Mesh) -> Accumulator:
    """Return shapes, types and shardings of an accumulator, from those of the parameters."""
    whole = shardings(mesh, WHOLE)
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    sums = LossSums(*[scalar] * len(LossSums._fields))
    if config.experts is None:
        return Accumulator(params, sums)
    by_block = scalar.update(shape=(config.num_layers,))
    by_expert = scalar.update(shape=(config.num_layers, config.experts.number))
    routed = RouterSums(*[by_block] * len(RouterSums._fields))
    return Accumulator(params, sums, routed._replace(assigned=by_expert, probability=by_expert))


def abstract_rows(shape: Shape, mesh: Mesh, annotations: Collection[str]) -> TrainRows:
    """Return shapes, types and shardings of rows of a bucket, with some of the `ANNOTATIONS`.

    Raises:
        ConfigError: The mesh cannot split them.
    """
    check_rows(shape, mesh)
    to = shardings(mesh, row_spec())
    return make_rows(lambda dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=to), annotations)


def without_annotations(rows: TrainRows) -> TrainRows:
    """Return what scoring looks at."""
    return rows._replace(**dict.fromkeys(ANNOTATIONS))


def shardings_of(abstract: Any) -> Any:
    """Return the shardings of a tree of abstract arrays."""
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)


def _with_shardings(shapes: Any, to: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, to
    )
