"""The reference policy that an objective holds the trained one to: its parameters, and logprobs under them.

It is a function of the settings and of the policies that the run made, so that a run that was killed and
resumed, or replayed from its journal, is held to the same reference as the first time.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, DTypeLike

from forebay.batching.batch import Batch
from forebay.learner.annotations import write_array
from forebay.learner.checkpoint_manifest import CheckpointCursor
from forebay.learner.placing import put
from forebay.learner.programs import TrainPrograms
from forebay.learner.reference_settings import ReferenceSettings
from forebay.learner.train_step import TrainState
from forebay.models.params import Params
from forebay.models.value_head import without_value_head
from forebay.trajectory import PolicyVersion


class SavedState(NamedTuple):
    """What a checkpoint holds.

    Attributes:
        params: Parameter tree, float32 master weights.
        opt_state: State of the optimizer.
        step: int32 scalar, optimizer steps applied.
        reference: Parameter tree of the reference policy; None where it can be had from elsewhere.
    """

    params: Params
    opt_state: optax.OptState
    step: Array
    reference: Params | None = None

    @property
    def train_state(self) -> TrainState:
        """The part that an optimizer step changes."""
        return TrainState(self.params, self.opt_state, self.step)


class ReferencePrograms:
    """What a reference is made with, whatever it is at the moment.

    Args:
        programs: Of the policy; `warm_up` must be told of `dtype`.
        settings: Which policy is the reference, and when it is updated.
        dtype: Type that its parameters are held in.
        updates_per_batch: Optimizer steps, and so versions, of one batch.
    """

    def __init__(
        self, programs: TrainPrograms, settings: ReferenceSettings, dtype: DTypeLike, updates_per_batch: int
    ) -> None:
        self.programs = programs
        self.settings = settings
        self.dtype = jnp.dtype(dtype)
        self.abstract = programs.abstract_params(dtype)
        self._updates_per_batch = updates_per_batch
        self._mixed: Any = None

    def warm_up(self) -> tuple[str, ...]:
        """Compile what updates the reference; return the names of what was compiled."""
        if self.settings.update_every == 0 or self.settings.is_policy:
            return ()
        share = self.settings.update_share
        shardings = jax.tree.map(lambda leaf: leaf.sharding, self.abstract)

        def mix(reference: Params, params: Params) -> Params:
            # In float32, and never the very buffers of the policy: the next update overwrites those.
            return jax.tree.map(
                lambda old, new: (
                    jnp.array(new, old.dtype, copy=True)
                    if share == 1
                    else (old + share * (new - old)).astype(old.dtype)
                ),
                reference,
                params,
            )

        program = jax.jit(mix, donate_argnums=0, out_shardings=shardings)
        self._mixed = program.lower(self.abstract, self.programs.abstract_params(jnp.float32)).compile()
        return ("update_reference",)

    def mix(self, reference: Params, params: Params) -> Params:
        """Return the reference after an update by the policy; the old one is donated."""
        return self._mixed(reference, without_value_head(params))

    def batches_of(self, version: PolicyVersion) -> int:
        """Return how many batches of the run made a version."""
        return version.version // self._updates_per_batch

    def template(self, cursor: CheckpointCursor) -> SavedState:
        """Return shapes, types and shardings of a checkpoint, by where in the run it was saved."""
        kept = self.settings.origin_at(self.batches_of(cursor.version)) == "own"
        return SavedState(*self.programs.abstract_state, reference=self.abstract if kept else None)


class Reference:
    """The reference of one learner; an `Annotator`.

    Args:
        made_with: Its programs, warmed up.
        source: Host parameters of what it began with; not kept.
        version: Where in the run it is.
        saved: The checkpoint that the run resumes from; None at the beginning of a run.

    Attributes:
        params: Parameters that are kept for it; None where it is the policy before each batch.
    """

    def __init__(
        self,
        made_with: ReferencePrograms,
        source: Params,
        version: PolicyVersion,
        saved: SavedState | None = None,
    ) -> None:
        self._made_with = made_with
        self._origin = made_with.settings.origin_at(made_with.batches_of(version))
        self.params: Params | None = None
        if made_with.settings.is_policy:
            return
        if saved is not None and saved.reference is not None:
            self.params = saved.reference
            return
        self.params = jax.tree.map(_placed, source, made_with.abstract)
        if saved is not None and self._origin == "policy":
            self.params = made_with.mix(self.params, saved.params)

    def annotate(self, params: Params, updates: tuple[Batch, ...]) -> tuple[Batch, ...]:
        """Write `reference_logprobs`; see `Annotator.annotate`."""
        programs, held = self._made_with.programs, params if self.params is None else self.params
        return write_array(
            updates, "reference_logprobs", lambda rows: programs.logprobs(held, programs.place(rows))
        )

    def trained(self, params: Params, version: PolicyVersion) -> None:
        """Move on if it is time to; see `Annotator.trained`."""
        settings, batches = self._made_with.settings, self._made_with.batches_of(version)
        self._origin = settings.origin_at(batches)
        if self.params is not None and settings.update_every and batches % settings.update_every == 0:
            self.params = self._made_with.mix(self.params, params)

    def saved_with(self, state: TrainState) -> SavedState:
        """Return what a checkpoint must hold: the reference only where it can be had from nowhere else."""
        return SavedState(*state, reference=self.params if self._origin == "own" else None)


def _placed(leaf: Any, like: jax.ShapeDtypeStruct) -> Array:
    # A copy of its own: an update donates it. Cast on the host, where nothing is compiled for it.
    return put(np.array(leaf, like.dtype), like.sharding, may_alias=False)
