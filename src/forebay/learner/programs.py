"""The learner's compiled programs: a fixed table, filled before the first step; nothing compiles afterwards.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, DTypeLike, Float

from forebay.batching.rows import TrainRows, make_rows
from forebay.errors import ConfigError
from forebay.learner.frozen import Frozen
from forebay.learner.lowering import (
    abstract_accumulator,
    abstract_rows,
    abstract_state,
    jit_row_programs,
    jit_update,
    shardings_of,
    trained_specs,
    without_annotations,
)
from forebay.learner.optimizer import OptimizerSettings, make_optimizer
from forebay.learner.placing import put
from forebay.learner.program_table import Compiled, Program, ProgramTable, Shape, log_compiled
from forebay.learner.train_step import Accumulator, StepStats, TrainState, new_state
from forebay.models.attention import kind_of
from forebay.models.config import ModelConfig
from forebay.models.mesh_axes import check_divisible
from forebay.models.params import Params
from forebay.models.platforms import check_attention
from forebay.models.router_loss import NO_ROUTER_LOSS, RouterLoss
from forebay.models.settings import ComputeSettings, LoraSettings
from forebay.models.sharding import row_spec, shardings
from forebay.models.value_head import with_value_head, without_value_head
from forebay.objectives.surrogate import Objective, ValueLoss


class TrainPrograms:
    """The programs of one model, mesh, optimizer and objective.

    Once: `state = init_state(params)`, `accumulator = zeros()`, `warm_up(shapes)`; with adapters also
    `frozen.hold(model)`. Per step: `accumulate` every micro-batch with the batch's one denominator, then
    `apply`. State and accumulator are donated: what must outlive a step is a `snapshot`.

    Args:
        config: The model.
        mesh: From `make_mesh`.
        optimizer: Settings of the optimizer.
        objective: What is minimized.
        compute: Types, remat, attention and the chunk of the loss.
        annotations: Which `ANNOTATIONS` of its rows the objective looks at; `accumulate` needs exactly these.
        value_loss: What a critic is trained by; the state then has a value head. None: there is none.
        value_scale: Learning rate of the value head, as a multiple of the model's.
        of_routers: What routers of experts are trained by, beyond the objective.
        lora: The adapters that are trained; all else is frozen. None: the model is trained itself.

    Raises:
        ConfigError: The mesh cannot split the model or run its attention, or an adapter has no projection.
    """

    def __init__(
        self,
        config: ModelConfig,
        mesh: Mesh,
        optimizer: OptimizerSettings,
        objective: Objective,
        compute: ComputeSettings = ComputeSettings(),
        annotations: Collection[str] = (),
        value_loss: ValueLoss | None = None,
        value_scale: float = 1.0,
        of_routers: RouterLoss = NO_ROUTER_LOSS,
        lora: LoraSettings | None = None,
    ) -> None:
        check_divisible(config, mesh.shape)
        check_attention(compute.attention, *kind_of(mesh.devices.flat[0]))
        self._config, self._mesh = config, mesh
        self._has_critic = value_loss is not None
        self._annotations, self._of_routers = annotations, of_routers
        self._optimizer = make_optimizer(optimizer, value_scale if self._has_critic else None)
        self.frozen = Frozen(config, mesh, compute.compute_dtype, is_model=lora is not None)
        split = self.frozen.specs, trained_specs(config, lora, has_critic=self._has_critic)
        self._state = abstract_state(config, mesh, self._optimizer, split[1], lora)
        self._accumulator = abstract_accumulator(config, self._state.params, mesh)
        self._jitted = jit_row_programs(config, mesh, split, objective, value_loss, of_routers, lora, compute)
        self._jitted["apply"] = jit_update(mesh, self._state, self._accumulator, self._optimizer, optimizer)
        self._table = ProgramTable()

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, types and shardings of the state; what a checkpoint is restored into."""
        return self._state

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """(rows, length) of every compiled micro-batch."""
        return self._table.shapes("accumulate")

    def init_state(self, params: Params) -> TrainState:
        """Place parameters on the mesh as float32 master weights, with a fresh optimizer state.

        A critic's value head is added, saying 0.

        Args:
            params: Of what is trained, a model or adapters: NumPy or JAX arrays; copied, never aliased.
        """
        if self._has_critic:
            params = with_value_head(params, self._config)
        begin = functools.partial(new_state, optimizer=self._optimizer)
        placed = jax.jit(begin, donate_argnums=0, out_shardings=shardings_of(self._state))
        return placed(jax.tree.map(_master_weights, params, self._state.params))

    def zeros(self) -> Accumulator:
        """Return an empty accumulator. `apply` hands an emptied one back, so that a run makes one."""
        return jax.tree.map(_zeros, self._accumulator)

    def place(self, rows: TrainRows) -> TrainRows:
        """Copy rows to the devices, split over them by `row_spec`."""
        return put(rows, shardings(self._mesh, row_spec()))

    def stand_in(self, rows: TrainRows) -> TrainRows:
        """Return rows with zeros for the annotations that they lack: fit to be timed, not to be trained."""
        blank = make_rows(lambda dtype: np.zeros(rows.tokens.shape, dtype), self._annotations)
        lacking = [name for name in self._annotations if getattr(rows, name) is None]
        return rows._replace(**{name: getattr(blank, name) for name in lacking})

    def warm_up(
        self,
        shapes: Iterable[Shape],
        *,
        scored_dtypes: Collection[DTypeLike] = (),
        told: Callable[[Compiled], None] = log_compiled,
    ) -> tuple[str, ...]:
        """Compile every program that a run will use; afterwards no call compiles.

        Args:
            shapes: (rows, length) of every bucket; `sharding.check_rows` says what the mesh can split.
            scored_dtypes: Types of the parameters that `logprobs` will be asked about: float32 of the
                proximal policy, that of the reference. One more program by shape for each.
            told: Called after each program; writes a line into the log if nothing else is asked for.

        Returns:
            A name per compiled program.

        Raises:
            ConfigError: The mesh cannot split the rows of a bucket.
        """
        scoring = [_scoring(jnp.dtype(dtype)) for dtype in scored_dtypes]
        by_shape = ["accumulate", *["values"] * self._has_critic, *scoring]
        planned: list[Program] = [(name, shape) for shape in shapes for name in by_shape]
        return self._table.fill([*planned, ("apply", None)], self.lower, told)

    def lower(self, name: str, shape: Shape | None = None) -> Any:
        """Return a program before it is compiled, a `jax.stages.Lowered`; no array is made.

        Args:
            name: `accumulate`, `apply`, `values`, `logprobs`, or `logprobs_bfloat16` of such parameters.
            shape: (rows, length) of the micro-batch; None for `apply`.

        Raises:
            ConfigError: The mesh cannot split the rows.
        """
        kind, _, dtype = name.partition("_")
        program, frozen, accumulator = self._jitted[kind], self.frozen.abstract, self._accumulator
        if shape is None:
            return program.lower(self._state, accumulator)
        params = self.abstract_params(dtype or "float32") if kind == "logprobs" else self._state.params
        rows = abstract_rows(shape, self._mesh, self._annotations)
        if kind != "accumulate":
            return program.lower(frozen, params, without_annotations(rows))
        return program.lower(frozen, params, accumulator, rows, *[accumulator.sums.loss] * 2)

    def abstract_params(self, dtype: DTypeLike) -> Params:
        """Return shapes and shardings of the trained parameters, in a type; without a value head."""
        params = without_value_head(self._state.params)
        return jax.tree.map(lambda leaf: leaf.update(dtype=jnp.dtype(dtype)), params)

    def accumulate(
        self,
        params: Params,
        accumulator: Accumulator,
        rows: TrainRows,
        denominator: float,
        num_tokens: int | None = None,
    ) -> Accumulator:
        """Add a micro-batch's gradient and sums to the accumulator.

        Args:
            params: Parameters to differentiate at.
            accumulator: Donated.
            rows: [B, T] arrays of a planned bucket, annotated, from `place`.
            denominator: The whole batch's loss denominator, the same for all its micro-batches.
            num_tokens: Tokens of the whole batch that are no padding, of which the loss of routers is the
                mean; needed where there is one.

        Raises:
            ConfigError: The shape is none of the compiled ones, or the loss of routers lacks its denominator.
        """
        program = self._table.program("accumulate", rows.tokens.shape)
        scalars = np.float32(denominator), _router_tokens(self._of_routers, num_tokens)
        return program(self.frozen.weights, params, accumulator, rows, *scalars)

    def logprobs(self, params: Params, rows: TrainRows) -> Float[Array, "B T"]:
        """Return logprobs [B, T] float32, nats, of rows under `params`.

        Neither annotations nor a value head are looked at.

        Raises:
            ConfigError: The shape is none of the compiled ones, or `warm_up` was not told of the parameters'
                type.
        """
        scored = without_value_head(params)
        program = self._table.program(_scoring(jax.tree.leaves(scored)[0].dtype), rows.tokens.shape)
        return program(self.frozen.weights, scored, without_annotations(rows))

    def values(self, params: Params, rows: TrainRows) -> Float[Array, "B T"]:
        """Return the value of the state after each position of rows, [B, T] float32, in units of return.

        Raises:
            ConfigError: The shape is none of the compiled ones, or there is no critic.
        """
        program = self._table.program("values", rows.tokens.shape)
        return program(self.frozen.weights, params, without_annotations(rows))

    def apply(self, state: TrainState, accumulator: Accumulator) -> tuple[TrainState, Accumulator, StepStats]:
        """Take one optimizer step, or none at all if loss or gradient is not finite.

        Args:
            state: Donated.
            accumulator: Gradient and sums of the whole batch. Donated.

        Returns:
            The new state, an emptied accumulator, and what the step did.

        Raises:
            ConfigError: `warm_up` was not called.
        """
        return self._table.program("apply", None)(state, accumulator)


def _router_tokens(of_routers: RouterLoss, num_tokens: int | None) -> np.float32:
    if of_routers.is_on and num_tokens is None:
        raise ConfigError("a loss of routers needs num_tokens, of which it is the mean", got=None)
    return np.float32(num_tokens or math.inf)


def _master_weights(leaf: Any, like: jax.ShapeDtypeStruct) -> Array:
    # Shard by shard: no device need hold them whole.
    return put(np.asarray(leaf, np.float32), like.sharding, may_alias=False)


def _zeros(like: jax.ShapeDtypeStruct) -> Array:
    return jnp.zeros(like.shape, like.dtype, device=like.sharding)


def _scoring(dtype: Any) -> str:
    return "logprobs" if dtype == jnp.float32 else f"logprobs_{dtype}"
