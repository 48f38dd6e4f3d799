"""The learner's compiled programs: a fixed table, filled before the first step; nothing compiles afterwards.

Legend: B rows, T tokens.
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, DTypeLike, Float

from forebay.batching.rows import ANNOTATIONS, TrainRows, make_rows
from forebay.errors import ConfigError
from forebay.learner.optimizer import OptimizerSettings, make_optimizer, make_schedule
from forebay.learner.train_step import (
    Accumulator,
    StepStats,
    TrainState,
    add_gradients,
    apply_gradients,
    new_state,
    row_hidden,
    row_logprobs,
)
from forebay.models.config import ModelConfig
from forebay.models.layout import parameters_of, place
from forebay.models.params import Params
from forebay.models.settings import ComputeSettings
from forebay.models.sharding import (
    ROW_AXES,
    SHARDED,
    check_divisible,
    parameter_specs,
    row_spec,
    shardings,
)
from forebay.models.value_head import (
    state_values,
    value_head_shapes,
    value_head_specs,
    with_value_head,
    without_value_head,
)
from forebay.objectives.inputs import LossSums
from forebay.objectives.surrogate import Objective, ValueLoss

Shape = tuple[int, int]
logger = logging.getLogger(__name__)
_WHOLE = PartitionSpec()
_SUMS = LossSums(*[_WHOLE] * len(LossSums._fields))


class Compiled(NamedTuple):
    """A program that is ready: its name, that it is the n-th of all, and how long it took, seconds."""

    name: str
    number: int
    total: int
    compile_s: float


def log_compiled(done: Compiled) -> None:
    """Say how far compiling is."""
    logger.info("compiled %d of %d programs: %s, %.1f s", done.number, done.total, done.name, done.compile_s)


class TrainPrograms:
    """The programs of one model, mesh, optimizer and objective.

    Once: `state = init_state(params)`, `accumulator = zeros()`, `warm_up(shapes)`. Per step: `accumulate`
    every micro-batch with the batch's one denominator, then `apply`. State and accumulator are donated: the
    arrays that were passed in are gone afterwards, so what must outlive a step is a `snapshot`.

    Args:
        config: The model.
        mesh: From `make_mesh`.
        optimizer: Settings of the optimizer.
        objective: What is minimized.
        compute: Types, remat, attention and the chunk of the loss.
        annotations: Which `ANNOTATIONS` of its rows the objective looks at; `accumulate` needs exactly these.
        value_loss: What a critic is trained by; the state then has a value head. None: there is none.
        value_scale: Learning rate of the value head, as a multiple of the model's.

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
        annotations: Collection[str] = (),
        value_loss: ValueLoss | None = None,
        value_scale: float = 1.0,
    ) -> None:
        check_divisible(config, mesh)
        self._config = config
        self._mesh = mesh
        self._has_critic = value_loss is not None
        self._annotations = annotations
        self._optimizer = make_optimizer(optimizer, value_scale if self._has_critic else None)
        self._specs = parameter_specs(config) | (value_head_specs() if self._has_critic else {})
        self._state = _abstract_state(config, mesh, self._optimizer, self._specs)
        self._accumulator = _abstract_accumulator(self._state.params, mesh)
        self._jitted = _jit_row_programs(config, mesh, self._specs, objective, value_loss, compute)
        self._jitted["apply"] = _jit_update(mesh, self._state, self._accumulator, self._optimizer, optimizer)
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

        A critic's value head is added, saying 0.

        Args:
            params: The model's parameter tree, NumPy or JAX arrays; copied, never aliased.
        """
        if self._has_critic:
            params = with_value_head(params, self._config)
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
        return jax.device_put(rows, shardings(self._mesh, row_spec()))

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
            shapes: (rows, length) of every bucket; rows must be a multiple of the mesh's data x fsdp.
            scored_dtypes: Types of the parameters that `logprobs` will be asked about: float32 of the
                proximal policy, that of the reference. One more program by shape for each.
            told: Called after each program; writes a line into the log if nothing else is asked for.

        Returns:
            A name per compiled program.

        Raises:
            ConfigError: The mesh cannot split the rows of a bucket.
        """
        whole = shardings(self._mesh, _WHOLE)
        planned: list[tuple[str, Shape | None, tuple[Any, ...]]] = []
        for shape in shapes:
            rows = _abstract_rows(shape, self._mesh, self._annotations)
            bare = _without_annotations(rows)
            scalar = jax.ShapeDtypeStruct((), jnp.float32, sharding=whole)
            planned.append(("accumulate", shape, (self._state.params, self._accumulator, rows, scalar)))
            if self._has_critic:
                planned.append(("values", shape, (self._state.params, bare)))
            for dtype in scored_dtypes:
                planned.append((_scoring(jnp.dtype(dtype)), shape, (self.abstract_params(dtype), bare)))
        planned.append(("apply", None, (self._state, self._accumulator)))
        for number, (name, planned_shape, args) in enumerate(planned, start=1):
            began_s = time.monotonic()
            self._compile(name, planned_shape, *args)
            told(Compiled(_label(name, planned_shape), number, len(planned), time.monotonic() - began_s))
        return tuple(_label(name, shape) for name, shape in self._compiled)

    def abstract_params(self, dtype: DTypeLike) -> Params:
        """Return shapes and shardings of the model's parameters, in a type."""
        return jax.tree.map(
            lambda leaf: leaf.update(dtype=jnp.dtype(dtype)), without_value_head(self._state.params)
        )

    def accumulate(
        self, params: Params, accumulator: Accumulator, rows: TrainRows, denominator: float
    ) -> Accumulator:
        """Add a micro-batch's gradient and sums to the accumulator.

        Args:
            params: Parameters to differentiate at.
            accumulator: Donated.
            rows: [B, T] arrays of a planned bucket, annotated, from `place`.
            denominator: The whole batch's loss denominator, the same for all its micro-batches.

        Raises:
            ConfigError: The shape is none of the compiled ones.
        """
        program = self._program("accumulate", rows.tokens.shape)
        return program(params, accumulator, rows, np.float32(denominator))

    def logprobs(self, params: Params, rows: TrainRows) -> Float[Array, "B T"]:
        """Return logprobs [B, T] float32, nats, of rows under `params`.

        Neither annotations nor a value head are looked at.

        Raises:
            ConfigError: The shape is none of the compiled ones, or `warm_up` was not told of the parameters'
                type.
        """
        name = _scoring(params["embedding"].dtype)
        program = self._program(name, rows.tokens.shape)
        return program(without_value_head(params), _without_annotations(rows))

    def values(self, params: Params, rows: TrainRows) -> Float[Array, "B T"]:
        """Return the value of the state after each position of rows, [B, T] float32, in units of return.

        Raises:
            ConfigError: The shape is none of the compiled ones, or there is no critic.
        """
        return self._program("values", rows.tokens.shape)(params, _without_annotations(rows))

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
        self._compiled[name, shape] = self._jitted[name.partition("_")[0]].lower(*args).compile()

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


def _label(name: str, shape: Shape | None) -> str:
    return name if shape is None else f"{name}{list(shape)}"


def _scoring(dtype: Any) -> str:
    return "logprobs" if dtype == jnp.float32 else f"logprobs_{dtype}"


def _without_annotations(rows: TrainRows) -> TrainRows:
    return rows._replace(**dict.fromkeys(ANNOTATIONS))


def _jit_row_programs(
    config: ModelConfig,
    mesh: Mesh,
    specs: dict[str, Any],
    objective: Objective,
    value_loss: ValueLoss | None,
    compute: ComputeSettings,
) -> dict[str, Any]:
    """Wrap what `train_step` does with rows in shard_map and jit, with what it donates."""
    accumulated = Accumulator(specs, _SUMS)

    def logprobs(params: Params, rows: TrainRows) -> Array:
        return row_logprobs(params, row_hidden(params, rows, config, compute), rows, config, compute)[0]

    def values(params: Params, rows: TrainRows) -> Array:
        return state_values(params, row_hidden(params, rows, config, compute), SHARDED)

    gradients = functools.partial(
        add_gradients, config=config, objective=objective, value_loss=value_loss, compute=compute
    )

    def scoring(score: Callable[[Params, TrainRows], Array], specs: dict[str, Any]) -> Any:
        return jax.jit(jax.shard_map(score, mesh=mesh, in_specs=(specs, row_spec()), out_specs=row_spec()))

    return {
        "accumulate": jax.jit(
            jax.shard_map(
                gradients, mesh=mesh, in_specs=(specs, accumulated, row_spec(), _WHOLE), out_specs=accumulated
            ),
            donate_argnums=1,
        ),
        "logprobs": scoring(logprobs, without_value_head(specs)),
        "values": scoring(values, specs),
    }


def _jit_update(
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
        out_shardings=(_shardings_of(state), _shardings_of(accumulator), shardings(mesh, _WHOLE)),
    )


def _abstract_state(
    config: ModelConfig, mesh: Mesh, optimizer: optax.GradientTransformation, specs: dict[str, Any]
) -> TrainState:
    params: Params = {}
    for parameter in parameters_of(config):
        layers = (config.num_layers,) if parameter.in_layers else ()
        place(params, parameter, jax.ShapeDtypeStruct(layers + parameter.shape(config), jnp.float32))
    for name, head_shape in value_head_shapes(config).items():
        if name in specs:
            params[name] = jax.ShapeDtypeStruct(head_shape, jnp.float32)
    state = jax.eval_shape(functools.partial(new_state, optimizer=optimizer), params)
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


def _abstract_rows(shape: Shape, mesh: Mesh, annotations: Collection[str]) -> TrainRows:
    multiple = mesh.shape[ROW_AXES[0]] * mesh.shape[ROW_AXES[1]]
    if shape[0] % multiple:
        raise ConfigError(
            f"a bucket of {shape[0]} rows x {shape[1]} tokens cannot be split over the mesh",
            got=f"{shape[0]} rows",
            limit=f"a multiple of data x fsdp = {multiple}",
            remedy="Change the rows of the bucket, or lower mesh.data or mesh.fsdp.",
        )
    to = shardings(mesh, row_spec())
    return make_rows(lambda dtype: jax.ShapeDtypeStruct(shape, dtype, sharding=to), annotations)


def _with_shardings(shapes: Any, to: Any) -> Any:
    return jax.tree.map(
        lambda leaf, sharding: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding), shapes, to
    )


def _shardings_of(abstract: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.sharding, abstract)
