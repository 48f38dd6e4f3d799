"""The learner's compiled programs: a fixed table, filled before the first step; nothing compiles afterwards.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from forebay.batching.rows import ROW_DTYPES, TrainRows
from forebay.errors import ConfigError
from forebay.learner.optimizer import OptimizerSettings, make_optimizer, make_schedule
from forebay.learner.train_step import (
    Accumulator,
    StepStats,
    TrainState,
    add_gradients,
    apply_gradients,
    new_state,
    row_logprobs,
)
from forebay.models.config import ModelConfig
from forebay.models.layout import parameters_of, place
from forebay.models.params import Params
from forebay.models.settings import ComputeSettings
from forebay.models.sharding import (
    ROW_AXES,
    check_divisible,
    parameter_specs,
    row_spec,
    shardings,
)
from forebay.objectives.inputs import LossSums
from forebay.objectives.surrogate import Objective

Shape = tuple[int, int]
_WHOLE = PartitionSpec()
_SUMS = LossSums(*[_WHOLE] * len(LossSums._fields))
_ROWS = TrainRows(*[row_spec()] * len(TrainRows._fields))


class TrainPrograms:
    """The programs of one model, mesh, optimizer and objective.

    Once: `state = init_state(params)`, `accumulator = zeros()`, `warm_up(shapes)`. Per step: `accumulate`
        every
    micro-batch with the batch's one denominator, then `apply`. State and accumulator are donated: the arrays
    that were passed in are gone afterwards, so what must outlive a step is a `snapshot`.

    Args:
        config: The model.
        mesh: From `make_mesh`.
        optimizer: Settings of the optimizer.
        objective: What is minimized.
        compute: Types, remat, attention and the chunk of the loss.

    Raises:
        ConfigError: The mesh cannot split the model.
    """

    def __init__(
        self,
        config: ModelConfig,
        mesh: Mesh,
        optimizer: OptimizerSettings,
        objective: Objective,
        compute: ComputeSettings = ComputeSettings(),
    ) -> None:
        check_divisible(config, mesh)
        self._mesh = mesh
        self._optimizer = make_optimizer(optimizer)
        self._state = _abstract_state(config, mesh, self._optimizer)
        self._accumulator = _abstract_accumulator(self._state.params, mesh)
        self._jitted = _jit_programs(
            config, mesh, self._state, self._accumulator, objective, compute, self._optimizer, optimizer
        )
        self._compiled: dict[tuple[str, Shape | None], Any] = {}

    @property
    def abstract_state(self) -> TrainState:
        """Shapes, types and shardings of the state; what a checkpoint is restored into."""
        return self._state

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """(rows, length) of every compiled micro-batch."""
        return tuple(shape for name, shape in self._compiled if name == "accumulate" and shape is not None)

    def init_state(self, params: Params) -> TrainState:
        """Place parameters on the mesh as float32 master weights, with a fresh optimizer state.

        Args:
            params: Parameter tree, NumPy or JAX arrays; copied, never aliased.
        """
        return jax.jit(
            functools.partial(new_state, optimizer=self._optimizer), out_shardings=_shardings_of(self._state)
        )(jax.tree.map(lambda leaf: np.array(leaf, np.float32), params))

    def zeros(self) -> Accumulator:
        """Return an empty accumulator. `apply` hands an emptied one back, so that a run makes one."""
        return jax.tree.map(
            lambda leaf: jnp.zeros(leaf.shape, leaf.dtype, device=leaf.sharding), self._accumulator
        )

    def place(self, rows: TrainRows) -> TrainRows:
        """Copy rows to the devices, split over `data` and `fsdp`."""
        return jax.device_put(rows, shardings(self._mesh, _ROWS))

    def warm_up(self, shapes: Iterable[Shape], *, recompute: bool = False) -> tuple[str, ...]:
        """Compile every program that a run will use; afterwards no call compiles.

        Args:
            shapes: (rows, length) of every bucket; rows must be a multiple of the mesh's data x fsdp.
            recompute: Also compile `logprobs`, for the proximal policy of several minibatches or epochs.

        Returns:
            A name per compiled program.

        Raises:
            ConfigError: The mesh cannot split the rows of a bucket.
        """
        whole = shardings(self._mesh, _WHOLE)
        for shape in shapes:
            rows = _abstract_rows(shape, self._mesh)
            scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
            self._compile("accumulate", shape, self._state.params, self._accumulator, rows, scalar)
            if recompute:
                self._compile("logprobs", shape, self._state.params, rows)
        self._compile("apply", None, self._state, self._accumulator)
        return tuple(name if shape is None else f"{name}{list(shape)}" for name, shape in self._compiled)

    def accumulate(
        self, params: Params, accumulator: Accumulator, rows: TrainRows, denominator: float
    ) -> Accumulator:
        """Add a micro-batch's gradient and sums to the accumulator.

        Args:
            params: Parameters to differentiate at.
            accumulator: Donated.
            rows: [B, T] arrays of a planned bucket, from `place`.
            denominator: The whole batch's loss denominator, the same for all its micro-batches.

        Raises:
            ConfigError: The shape is none of the compiled ones.
        """
        program = self._program("accumulate", rows.tokens.shape)
        return program(params, accumulator, rows, np.float32(denominator))

    def logprobs(self, params: Params, rows: TrainRows) -> Float[Array, "B T"]:
        """Return logprobs [B, T] float32, nats, of rows under `params`.

        Raises:
            ConfigError: The shape is none of the compiled ones, or `warm_up` was not asked to recompute.
        """
        return self._program("logprobs", rows.tokens.shape)(params, rows)

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
        return self._program("apply", None)(state, accumulator)

    def _compile(self, name: str, shape: Shape | None, *args: Any) -> None:
        self._compiled[name, shape] = self._jitted[name].lower(*args).compile()

    def _program(self, name: str, shape: Shape | None) -> Any:
        try:
            return self._compiled[name, shape]
        except KeyError:
            raise ConfigError(
                f"no compiled {name} program for this (rows, length)",
                got=shape,
                limit=sorted(known for program, known in self._compiled if program == name and known),
                remedy="Plan the shape: every bucket goes through warm_up before the first step.",
            ) from None


def _jit_programs(
    config: ModelConfig,
    mesh: Mesh,
    state: TrainState,
    accumulator: Accumulator,
    objective: Objective,
    compute: ComputeSettings,
    optimizer: optax.GradientTransformation,
    settings: OptimizerSettings,
) -> dict[str, Any]:
    """Wrap the functions of `train_step` in shard_map and jit, with what they donate."""
    specs = parameter_specs(config)
    accumulated = Accumulator(specs, _SUMS)

    def logprobs(params: Params, rows: TrainRows) -> Array:
        return row_logprobs(params, rows, config, compute)[0]

    gradients = functools.partial(add_gradients, config=config, objective=objective, compute=compute)
    update = functools.partial(
        apply_gradients,
        optimizer=optimizer,
        schedule=make_schedule(settings),
        ess_scaling=settings.ess_scaling,
    )
    return {
        "accumulate": jax.jit(
            jax.shard_map(
                gradients, mesh=mesh, in_specs=(specs, accumulated, _ROWS, _WHOLE), out_specs=accumulated
            ),
            donate_argnums=1,
        ),
        "logprobs": jax.jit(
            jax.shard_map(logprobs, mesh=mesh, in_specs=(specs, _ROWS), out_specs=row_spec())
        ),
        "apply": jax.jit(
            update,
            donate_argnums=(0, 1),
            out_shardings=(_shardings_of(state), _shardings_of(accumulator), shardings(mesh, _WHOLE)),
        ),
    }


def _abstract_state(config: ModelConfig, mesh: Mesh, optimizer: optax.GradientTransformation) -> TrainState:
    params: Params = {}
    for parameter in parameters_of(config):
        layers = (config.num_layers,) if parameter.in_layers else ()
        place(params, parameter, jax.ShapeDtypeStruct(layers + parameter.shape(config), jnp.float32))
    state = jax.eval_shape(functools.partial(new_state, optimizer=optimizer), params)
    specs = parameter_specs(config)
    opt_specs = optax.tree_map_params(
        optimizer, lambda _, spec: spec, state.opt_state, specs, transform_non_params=lambda _: _WHOLE
    )
    # PartitionSpecs stand where the arrays of a state would.
    layout = state._replace(params=specs, opt_state=opt_specs, step=_WHOLE)
    return _with_shardings(state, shardings(mesh, layout))


def _abstract_accumulator(params: Params, mesh: Mesh) -> Accumulator:
    whole = shardings(mesh, _WHOLE)
    scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
    return Accumulator(params, LossSums(*[scalar] * len(LossSums._fields)))


def _abstract_rows(shape: Shape, mesh: Mesh) -> TrainRows:
    multiple = mesh.shape[ROW_AXES[0]] * mesh.shape[ROW_AXES[1]]
    if shape[0] % multiple:
        raise ConfigError(
            f"a bucket of {shape[0]} rows x {shape[1]} tokens cannot be split over the mesh",
            got=f"{shape[0]} rows",
            limit=f"a multiple of data x fsdp = {multiple}",
            remedy="Change the rows of the bucket, or lower mesh.data or mesh.fsdp.",
        )
    to = shardings(mesh, row_spec())
    return TrainRows(*(jax.ShapeDtypeStruct(shape, dtype, sharding=to) for dtype in ROW_DTYPES))


def _with_shardings(shapes: Any, to: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, to
    )


def _shardings_of(abstract: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)
