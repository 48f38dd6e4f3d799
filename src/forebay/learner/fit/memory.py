"""Bytes of one device by what they are for: arithmetic that ranks plans, not a promise.

What is exact: master weights, Adam's moments and the accumulator, from the table of parameters. The rest is
an estimate of what a compiler would make of the train step, which is why the compiler is asked in the end.

References:
    Korthikanti et al. 2022, Reducing Activation Recomputation in Large Transformer Models, section 4, for
    activations by block with tokens split over the tensor axis.
    Rajbhandari et al. 2020, ZeRO, section 3.1, for the state of mixed-precision Adam.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Final

from forebay.learner.fit.plan import Plan, Remat
from forebay.models.config import ModelConfig
from forebay.models.layout import Parameter, parameters_of
from forebay.models.mesh_axes import PARAMETER_AXES
from forebay.models.settings import ComputeSettings, MeshSettings

_MASTER: Final = 4
_COMPUTE: Final = 2
_MOMENTS: Final = 2 * _MASTER
_SCORES: Final = 4
# Bytes that a compiler allots for each byte of temporaries that lives at the fullest moment. libtpu 0.0.42.1
# allots 90.1 GiB to a step of Llama-3-70B on 64 chips; by its own text 70.6 GiB live at once.
_HOLES: Final = 1.3
# Rows of experts alive at the fullest moment of a block's backward pass, as a mixture's kernels leave them:
# along the residual width (what came in, what is sent back, and both parts of its gradient), and along the
# width of an expert (both products, what they make, and their gradients).
_EXPERT_ROWS: Final = 5
_EXPERT_WIDE_ROWS: Final = 6
# What a block gathers over `tensor` for its backward pass: the inputs of attention and of the feed-forward
# layer, and the gradients of their outputs.
_GATHERED_STREAMS: Final = 4


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one device at the fullest moment of a step.

    Args:
        parameters: Master weights, float32.
        optimizer: Adam's two moments, float32.
        gradients: The accumulator, float32.
        activations: What the forward pass of a micro-batch keeps for the backward pass.
        temporary: All else that lives for a moment: gathered layers, gradients before they are scattered,
            logits of a chunk, working copies; and holes between arrays.
    """

    parameters: int
    optimizer: int
    gradients: int
    activations: int
    temporary: int

    @property
    def resident(self) -> int:
        """What is there between steps too."""
        return self.parameters + self.optimizer + self.gradients

    @property
    def peak(self) -> int:
        """All of it."""
        return sum(getattr(self, field.name) for field in fields(self))


def num_parameters(config: ModelConfig) -> int:
    """Return the number of trained numbers, from the table of parameters."""
    return sum(math.prod(parameter.stacked_shape(config)) for parameter in parameters_of(config))


def shard_size(config: ModelConfig, parameter: Parameter, mesh: MeshSettings, *, gathered: bool) -> int:
    """Return how many numbers of a parameter one device has.

    Args:
        config: The model.
        parameter: Which one.
        mesh: What splits it.
        gathered: Whether it is whole over `fsdp`, as while a block works.
    """
    split = [PARAMETER_AXES.get(axis) for axis in parameter.axes]
    parts: int = math.prod(
        getattr(mesh, axis) for axis in split if axis and not (gathered and axis == "fsdp")
    )
    return math.prod(parameter.stacked_shape(config)) // parts


def estimate_memory(config: ModelConfig, plan: Plan, compute: ComputeSettings) -> Memory:
    """Estimate the memory of one device.

    Args:
        config: The model.
        plan: How it is trained.
        compute: Gives the tokens of a chunk of the loss.
    """
    own = sum(shard_size(config, one, plan.mesh, gathered=False) for one in parameters_of(config))
    blocks = _saved_of_block(config, plan, plan.remat) * config.num_layers
    outside = _COMPUTE * config.hidden_size * (plan.own_tokens + plan.shard_tokens)
    activations = blocks + outside
    living = activations + _momentary(config, plan, compute, own)
    return Memory(
        parameters=_MASTER * own,
        optimizer=_MOMENTS * own,
        gradients=_MASTER * own,
        activations=activations,
        temporary=int(_HOLES * living) - activations,
    )


def kept_on_generator(config: ModelConfig, num_slots: int, max_length: int) -> tuple[int, int]:
    """Return bytes of the weights and of the key-value cache of a generator: bfloat16, one device.

    Args:
        config: The model.
        num_slots: Sequences that are decoded at the same time.
        max_length: Tokens that the cache of each has room for.
    """
    per_token = 2 * config.num_layers * config.num_kv_heads * config.head_size
    return _COMPUTE * num_parameters(config), _COMPUTE * per_token * num_slots * max_length


def _saved_of_block(config: ModelConfig, plan: Plan, remat: Remat) -> int:
    """Return bytes that one block keeps for its backward pass."""
    stream = plan.own_tokens * config.hidden_size
    if remat == "full":
        return _COMPUTE * stream
    heads, width = _local_widths(config, plan)
    copies = 0
    if config.experts is not None:
        # A token goes to its experts once for each; of what is exchanged nothing is kept.
        is_here = plan.mesh.expert == 1
        width, copies = width * is_here, config.experts.per_token * config.hidden_size * is_here
    products = plan.shard_tokens * (heads + 2 * width + copies) + 2 * stream
    if remat == "dots":
        return int(_COMPUTE * (stream + products))
    if remat == "elementwise":
        mixed = plan.shard_tokens * config.num_heads * config.head_size / plan.mesh.tensor
        return int(_COMPUTE * (stream + products + mixed))
    # Also norms, rotated heads, what attention mixed, the activation and its product.
    return int(_COMPUTE * (stream + 2 * products))


def _local_widths(config: ModelConfig, plan: Plan) -> tuple[float, float]:
    """Return, for each token, the numbers of this shard's queries, keys and values, and of its wide layer."""
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_size / plan.mesh.tensor
    return heads, active_width(config) / plan.mesh.tensor


def active_width(config: ModelConfig) -> int:
    """Return the width of the feed-forward layer that a token goes through."""
    if config.experts is None:
        return config.intermediate_size
    return config.experts.per_token * config.experts.width


def _momentary(config: ModelConfig, plan: Plan, compute: ComputeSettings, own: int) -> int:
    """Return bytes of what lives for a moment, at the fullest one: a block's backward pass, or the loss's."""
    whole = {one.name: shard_size(config, one, plan.mesh, gathered=True) for one in parameters_of(config)}
    block = sum(whole[one.name] for one in parameters_of(config) if one.in_layers) // config.num_layers
    streams = _GATHERED_STREAMS * plan.shard_tokens * config.hidden_size if plan.mesh.tensor > 1 else 0
    # The gradient so far, before it is added, and the weights in the compute type; two blocks gathered, the
    # one at work and the next; and a gradient that is not scattered yet.
    of_block = (_MASTER + _COMPUTE) * own + (2 * _COMPUTE + _MASTER) * block
    of_block += _saved_of_block(config, plan, "none") + _COMPUTE * streams + _of_experts(config, plan)
    chunk = min(compute.loss_chunk_tokens, plan.shard_tokens)
    head = whole.get("lm_head", whole["embedding"])
    of_loss = (_COMPUTE + _MASTER) * head + 3 * _SCORES * chunk * config.vocab_size // plan.mesh.tensor
    of_loss += 2 * _COMPUTE * plan.shard_tokens * config.hidden_size
    return max(of_block, of_loss)


def _of_experts(config: ModelConfig, plan: Plan) -> int:
    """Return bytes of what a block's experts work on, where they are split over a mesh axis."""
    experts = config.experts
    if experts is None or plan.mesh.expert == 1:
        return 0
    rows = experts.round_rows(plan.shard_tokens, plan.mesh.expert) * plan.mesh.expert
    width = _EXPERT_ROWS * config.hidden_size + _EXPERT_WIDE_ROWS * experts.width // plan.mesh.tensor
    return _COMPUTE * rows * width
