"""What one optimizer step computes: gradients of packed rows under `shard_map`, then one guarded update.

The gradient function runs under one `jax.shard_map` over all axes of the mesh, `sharding.MESH_AXIS_NAMES`;
one device is a mesh of sizes 1 and runs the same code. Parameters are gathered over `fsdp` block by block
inside the scan; the transpose of that gather scatters and adds their gradients, and the transpose of sharing
a parameter over other axes adds them over those. Tokens are split over `context` and `tensor` only within the
model: objectives see whole rows. The update is an ordinary `jit` on the sharded arrays: the partitioner then
computes the global norm over all shards, and the optimizer stays optax as published.

Legend: B rows, T tokens, S tokens of this shard, D model width.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Int

from forebay.batching.rows import TrainRows
from forebay.learner.drift import rate_scale
from forebay.models.config import ModelConfig
from forebay.models.logprobs import hidden_logprobs, to_targets
from forebay.models.lora import with_adapters
from forebay.models.moe import RouterSums
from forebay.models.params import Params
from forebay.models.router_loss import RouterLoss, router_loss, sum_shards
from forebay.models.settings import ComputeSettings, LoraSettings
from forebay.models.sharding import Axes
from forebay.models.transformer import token_states
from forebay.models.value_head import state_values
from forebay.objectives.inputs import LossInputs, LossSums
from forebay.objectives.surrogate import Objective, ValueLoss
from forebay.objectives.vcpo import ess_scale


class TrainState(NamedTuple):
    """What an optimizer step changes.

    Attributes:
        params: What is trained, float32 master weights: a model's parameters, or adapters on one; and the
            value head of a critic.
        opt_state: State of the optimizer.
        step: int32 scalar, optimizer steps applied.
    """

    params: Params
    opt_state: optax.OptState
    step: Int[Array, ""]


class Accumulator(NamedTuple):
    """What the micro-batches of one step add up to.

    Attributes:
        gradients: Gradient of the loss, float32, shaped and sharded like the parameters.
        sums: What the objective measured; `sums.loss` is the loss so far.
        routed: What the routers of experts did, of every block; None in a model without experts.
    """

    gradients: Params
    sums: LossSums
    routed: RouterSums | None = None


class StepStats(NamedTuple):
    """What one optimizer step did; float32 scalars, except `finite`.

    Attributes:
        sums: What the objective measured over the whole batch.
        grad_norm: Global norm of the gradient before clipping.
        update_norm: Global norm of the change of the parameters; 0 if nothing was updated.
        learning_rate: Learning rate of this step; scaled by its effective sample size, or by the price of
            drift, if that is asked for.
        finite: bool. Whether losses and gradient norm were finite; if not, the state is unchanged.
        routed: What the routers of experts did, of every block; None in a model without experts.
    """

    sums: LossSums
    grad_norm: Float[Array, ""]
    update_norm: Float[Array, ""]
    learning_rate: Float[Array, ""]
    finite: Bool[Array, ""]
    routed: RouterSums | None = None


def add_gradients(
    frozen: Params,
    params: Params,
    accumulator: Accumulator,
    rows: TrainRows,
    denominator: Float[Array, ""],
    num_tokens: Float[Array, ""],
    *,
    config: ModelConfig,
    objective: Objective,
    value_loss: ValueLoss | None,
    of_routers: RouterLoss,
    lora: LoraSettings | None,
    compute: ComputeSettings,
    axes: Axes,
) -> Accumulator:
    """Add a micro-batch's gradient and sums; runs per shard, inside the `shard_map`.

    Args:
        frozen: This shard's weights that are not trained; they have no gradient.
        params: This shard's parameters.
        accumulator: This shard's gradients so far; the sums are whole.
        rows: This shard's rows.
        denominator: Of the whole batch, fixed before it was split into micro-batches.
        num_tokens: Tokens of the whole batch that are no padding; the loss of routers is a mean over them.
        config: The model.
        objective: What is minimized; additive over rows.
        value_loss: What is added to it for a critic, and read from the same hidden states; None without one.
        of_routers: What is added to it for the routers of experts.
        lora: The adapters that `params` are; None if they are the model's own parameters.
        compute: Types, remat, attention and the chunk of the loss.
        axes: Mesh axes this runs under.
    """
    inputs = LossInputs(
        rows.loss_mask,
        rows.advantages,
        rows.behavior_logprobs,
        rows.proximal_logprobs,
        rows.segment_ids,
        rows.staleness,
        rows.reference_logprobs,
        rows.ratio_bounds,
    )

    def loss_of(params: Params) -> tuple[Array, tuple[LossSums, RouterSums | None]]:
        params = with_adapters(frozen, params, lora)
        hidden, routed = row_states(params, rows, config, compute, axes)
        logprobs, entropy = row_logprobs(params, hidden, rows, config, compute, axes)
        loss, sums = objective(logprobs, entropy, inputs, denominator)
        if routed is not None and of_routers.is_on:
            loss = loss + router_loss(routed, of_routers, num_tokens, axes)
        if value_loss is None:
            return loss, (sums, routed)
        assert rows.values is not None and rows.value_targets is not None
        values = to_targets(state_values(params, hidden, rows.tokens.shape, axes), rows.segment_ids)
        added = value_loss(
            values, rows.values, rows.value_targets, rows.loss_mask, rows.segment_ids, denominator
        )
        return loss + added, (sums._replace(value_loss=jax.lax.stop_gradient(added)), routed)

    gradients, (sums, routed) = jax.grad(loss_of, has_aux=True)(params)
    sums = jax.tree.map(lambda value: axes.sum_rows(value.astype(jnp.float32)), sums)
    added = Accumulator(gradients, sums, None if routed is None else sum_shards(routed, axes))
    return jax.tree.map(jnp.add, accumulator, added)


def row_states(
    params: Params, rows: TrainRows, config: ModelConfig, compute: ComputeSettings, axes: Axes
) -> tuple[Float[Array, "S D"], RouterSums | None]:
    """Return the last hidden state of this shard's tokens, and what routers of experts did with them."""
    return token_states(
        params, config, rows.tokens, rows.segment_ids, rows.positions, compute=compute, axes=axes
    )


def row_logprobs(
    params: Params,
    hidden: Float[Array, "S D"],
    rows: TrainRows,
    config: ModelConfig,
    compute: ComputeSettings,
    axes: Axes,
) -> tuple[Float[Array, "B T"], Float[Array, "B T"]]:
    """Return logprobs and entropy [B, T] of this shard's rows; runs inside the `shard_map`."""
    return hidden_logprobs(
        params,
        config,
        hidden,
        rows.tokens,
        rows.segment_ids,
        rows.temperature,
        compute=compute,
        axes=axes,
    )


def new_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Return the state before the first step."""
    return TrainState(params, optimizer.init(params), jnp.zeros((), jnp.int32))


def apply_gradients(
    state: TrainState,
    accumulator: Accumulator,
    *,
    optimizer: optax.GradientTransformation,
    schedule: optax.Schedule,
    ess_scaling: bool = False,
) -> tuple[TrainState, Accumulator, StepStats]:
    """Take one optimizer step, or none at all if loss or gradient is not finite.

    Args:
        state: The current state.
        accumulator: Gradient and sums of the whole batch.
        optimizer: Its state counts the steps that the schedule sees.
        schedule: The optimizer's learning rate, for the report.
        ess_scaling: Whether the learning rate is scaled by the effective sample size of the step.

    Returns:
        The new state, an emptied accumulator, and what the step did.
    """
    gradients, sums, routed = accumulator
    grad_norm = optax.tree.norm(gradients)
    finite = jnp.isfinite(grad_norm) & jnp.isfinite(sums.loss + sums.value_loss)
    optimizer = optax.with_extra_args_support(optimizer)
    updates, opt_state = optimizer.update(gradients, state.opt_state, state.params, sums=sums)
    learning_rate = jnp.asarray(schedule(state.step) * rate_scale(opt_state), jnp.float32)
    if ess_scaling:
        # The learning rate is the last factor of an update: scaling one scales the other.
        scale = ess_scale(sums)
        learning_rate = learning_rate * scale
        updates = jax.tree.map(lambda update: update * scale, updates)
    updated = TrainState(optax.apply_updates(state.params, updates), opt_state, state.step + 1)
    chosen = jax.tree.map(lambda new, old: jnp.where(finite, new, old), updated, state)
    stats = StepStats(
        sums=sums,
        grad_norm=grad_norm,
        update_norm=jnp.where(finite, optax.tree.norm(updates), 0.0),
        learning_rate=learning_rate,
        finite=finite,
        routed=routed,
    )
    return chosen, jax.tree.map(jnp.zeros_like, accumulator), stats


def snapshot(tree: Any) -> Any:
    """Copy a tree of arrays to host memory that no later step can touch.

    Whatever outlives a step, the published parameters above all, is a snapshot: state buffers are donated.
    """
    return jax.tree.map(lambda leaf: np.array(leaf, copy=True), jax.device_get(tree))
