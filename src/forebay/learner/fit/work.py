"""What a step computes, reads and sends: counts by device, from the sizes of the model and the mesh.

References:
    Kaplan et al. 2020, Scaling Laws for Neural Language Models, table 1 (2 operations per parameter and token
    forward, twice that backward, and attention's share).
    Dao 2023, FlashAttention-2, section 3.1 (a backward pass of attention is 2.5 forward ones).
    Austin et al. 2025, How to Scale Your Model, part 3 (bytes of collectives on a ring).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from forebay.learner.fit.memory import active_width, shard_size
from forebay.learner.fit.plan import Plan
from forebay.models.config import ModelConfig
from forebay.models.layout import parameters_of
from forebay.models.mesh_axes import PARAMETER_AXES

_MASTER: Final = 4
_COMPUTE: Final = 2
_ATTENTION_BACKWARD: Final = 2.5


@dataclass(frozen=True, slots=True)
class Collective:
    """Collectives of one kind over one mesh axis, of a step, as one device takes part in them.

    Args:
        axis: The mesh axis, or several joined by `+`.
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all` or `collective-permute`.
        count: How many there are.
        bytes: What a device sends, all of them together.
    """

    axis: str
    kind: str
    count: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Work:
    """What a step takes.

    Args:
        model_flops: Floating-point operations of forward and backward pass, of all devices; what a
            utilization is a fraction of.
        device_flops: What one device computes, recomputation and attention's own included.
        memory_bytes: What one device reads and writes, about.
        collectives: What devices exchange.
    """

    model_flops: float
    device_flops: float
    memory_bytes: float
    collectives: tuple[Collective, ...]


def active_parameters(config: ModelConfig, *, every_expert: bool = False) -> tuple[int, int]:
    """Return how many numbers of matrices a token is multiplied by: in the blocks, and in the output head.

    Args:
        config: The model.
        every_expert: Whether a token counts as going to all experts.
    """
    blocks, experts = 0, config.experts
    for parameter in parameters_of(config):
        if not parameter.in_layers or parameter.is_norm or parameter.is_bias:
            continue
        size = math.prod(parameter.stacked_shape(config))
        if experts is not None and parameter.in_experts and not every_expert:
            size = size * experts.per_token // experts.number
        blocks += size
    return blocks, config.vocab_size * config.hidden_size


def exchange_rounds(config: ModelConfig, plan: Plan) -> int:
    """Return how many rounds an exchange between even shards of experts takes; 1 where there is none."""
    if config.experts is None or plan.mesh.expert == 1:
        return 1
    return config.experts.usual_rounds(plan.shard_tokens, plan.mesh.expert)


def attention_flops(config: ModelConfig, length: int, tokens: int) -> float:
    """Return operations of scores and mixing, forward, for rows that each are one sequence.

    Args:
        config: The model; blocks with a window see no further.
        length: Tokens of a row.
        tokens: How many there are in all.
    """
    seen = sum(_mean_seen(length, kind.window) for kind in config.layer_kinds)
    return 4.0 * config.num_heads * config.head_size * seen * tokens


def count_work(config: ModelConfig, plan: Plan) -> Work:
    """Count what a step takes."""
    blocks, head = active_parameters(config)
    attention = attention_flops(config, plan.length, plan.tokens)
    model = 6.0 * (blocks + head) * plan.tokens + 3.0 * attention
    # Logits are always computed twice; attention, and with `full` all of a block, unless nothing is redone.
    again = 2.0 * head * plan.tokens
    again += attention if plan.remat in ("dots", "full") else 0.0
    again += 2.0 * plan.tokens * (blocks if plan.remat == "full" else _always_again(config, plan))
    total = model + again + (_ATTENTION_BACKWARD - 2.0) * attention
    return Work(
        model_flops=model,
        device_flops=total / plan.mesh.num_devices,
        memory_bytes=_memory_bytes(config, plan),
        collectives=_collectives(config, plan),
    )


def _always_again(config: ModelConfig, plan: Plan) -> int:
    """Return how many numbers of matrices are multiplied again whatever the policy: experts over shards."""
    if config.experts is None or plan.mesh.expert == 1:
        return 0
    return 3 * config.hidden_size * active_width(config) * config.num_layers


def _mean_seen(length: int, window: int | None) -> float:
    """Return how many tokens a token sees in the mean, itself included."""
    seen = min(window or length, length)
    return seen - seen * (seen - 1) / 2 / length


def _memory_bytes(config: ModelConfig, plan: Plan) -> float:
    own = sum(shard_size(config, one, plan.mesh, gathered=False) for one in parameters_of(config))
    whole = sum(shard_size(config, one, plan.mesh, gathered=True) for one in parameters_of(config))
    passes = 3 if plan.remat == "full" else 2
    # Gathered weights are written and read by each pass; gradients are written, scattered and added.
    weights = passes * 2 * _COMPUTE * whole + 2 * _MASTER * whole + 3 * _MASTER * own
    width = active_width(config)
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_size
    streams = 10 * plan.own_tokens * config.hidden_size
    wide = plan.shard_tokens * (4 * config.hidden_size + (3 * heads + 6 * width) / plan.mesh.tensor)
    activations = (passes + 1) * config.num_layers * _COMPUTE * (streams + wide)
    logits = 4 * 4 * plan.shard_tokens * config.vocab_size / plan.mesh.tensor
    # The optimizer reads weights, moments and gradients, and writes all of them.
    update = 8 * _MASTER * own
    return plan.micro_batches * (weights + activations + logits) + update


def _collectives(config: ModelConfig, plan: Plan) -> tuple[Collective, ...]:
    found = [
        *_of_parameters(config, plan),
        *_of_tokens(config, plan),
        *_of_rows(config, plan),
        *_of_experts(config, plan),
    ]
    return tuple(one for one in found if one.bytes)


def _sent(size: int, whole_bytes: float) -> float:
    """Return what a device of a ring sends to gather or scatter so many bytes."""
    return whole_bytes * (size - 1) / size


def _of_parameters(config: ModelConfig, plan: Plan) -> list[Collective]:
    """Gathers of weights, scatters of gradients, sums over axes that a parameter is not split over."""
    mesh, times = plan.mesh, plan.micro_batches
    gathered = scattered = 0.0
    num_gathers = 0
    summed: dict[str, float] = {}
    for one in parameters_of(config):
        split = {PARAMETER_AXES.get(axis) for axis in one.axes}
        layers = config.num_layers if one.in_layers else 1
        if "fsdp" in split and mesh.fsdp > 1:
            whole = shard_size(config, one, mesh, gathered=True)
            # Forward, and again in the backward pass for blocks, which keep nothing gathered.
            passes = 2 if one.in_layers else 1
            gathered += _sent(mesh.fsdp, passes * _COMPUTE * whole)
            scattered += _sent(mesh.fsdp, _MASTER * whole)
            num_gathers += passes * layers
        over = tuple(axis for axis in ("data", "context", "expert") if axis not in split)
        parts = math.prod(getattr(mesh, axis) for axis in over)
        if parts > 1:
            names = "+".join(axis for axis in over if getattr(mesh, axis) > 1)
            own = shard_size(config, one, mesh, gathered=False)
            summed[names] = summed.get(names, 0.0) + 2 * _sent(parts, _MASTER * own)
    rows = len([one for one in parameters_of(config) if "embed" in one.axes])
    return [
        Collective("fsdp", "all-gather", times * num_gathers, int(times * gathered)),
        Collective("fsdp", "reduce-scatter", times * rows, int(times * scattered)),
        *(Collective(names, "all-reduce", times, int(times * size)) for names, size in summed.items()),
    ]


def _of_tokens(config: ModelConfig, plan: Plan) -> list[Collective]:
    """Tokens gathered before projections that are split over `tensor`, and partial sums scattered after."""
    if plan.mesh.tensor == 1:
        return []
    # Two each way in a block; the backward pass mirrors them, and gathers again what was not kept.
    gathers = config.num_layers * (2 + 2 + 2) + 2
    # Nothing of a block's backward pass asks for what it added last: that sum is not made again.
    scatters = config.num_layers * (2 + 2 + (1 if plan.remat == "full" else 0)) + 2
    each = _sent(plan.mesh.tensor, _COMPUTE * plan.shard_tokens * config.hidden_size)
    times = plan.micro_batches
    return [
        Collective("tensor", "all-gather", times * gathers, int(times * gathers * each)),
        Collective("tensor", "reduce-scatter", times * scatters, int(times * scatters * each)),
    ]


def _of_rows(config: ModelConfig, plan: Plan) -> list[Collective]:
    """Keys and values on their way round the shards of a row, forward, backward with their gradients."""
    steps = plan.mesh.context - 1
    if not steps:
        return []
    pair = 2 * plan.shard_tokens * config.num_kv_heads * config.head_size / plan.mesh.tensor
    forward = 2 if plan.remat in ("dots", "full") else 1
    passes = forward * _COMPUTE + _COMPUTE + _MASTER
    times = plan.micro_batches * config.num_layers * steps
    return [Collective("context", "collective-permute", 3 * times, int(times * pair * passes))]


def _of_experts(config: ModelConfig, plan: Plan) -> list[Collective]:
    """Tokens on their way to their experts and back, with the room that is left over."""
    experts = config.experts
    if experts is None or plan.mesh.expert == 1:
        return []
    rows = experts.round_rows(plan.shard_tokens, plan.mesh.expert) * plan.mesh.expert
    # Forward, and there and back again in the backward pass, which keeps nothing of an exchange.
    sent, passes = rows * config.hidden_size * _COMPUTE, 3
    times = plan.micro_batches * config.num_layers * 2 * passes * exchange_rounds(config, plan)
    return [Collective("expert", "all-to-all", times, int(times * _sent(plan.mesh.expert, sent)))]
