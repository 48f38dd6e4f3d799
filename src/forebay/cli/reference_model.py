"""Where a run's reference policy comes from, and the refusal of another one than it was started with."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np

from forebay.cli.learner_parts import LearnerParts
from forebay.cli.origins import Origin, check_origin
from forebay.cli.reference_files import reference_path, refuse_other_model
from forebay.cli.runs import Run
from forebay.learner.reference import Reference, SavedState
from forebay.learner.reference_settings import INITIAL
from forebay.models.checkpoint_io import load_model
from forebay.models.config import ModelConfig
from forebay.models.params import Params
from forebay.trajectory import PolicyVersion
from forebay.weights.shard import digest_of

_FILE = "reference.json"


def make_reference(
    run: Run, parts: LearnerParts, initial: Params, version: PolicyVersion, saved: SavedState | None = None
) -> Reference | None:
    """Return the reference of a run; None if its objective has none.

    Args:
        run: The run.
        parts: Its programs, warmed up.
        initial: What it begins with.
        version: Where it is.
        saved: The checkpoint that it resumes from.

    Raises:
        ConfigError: The reference is not the one that the run was started with.
        ModelError: There is none where it should be, or it is another kind of model.
    """
    if parts.reference is None:
        return None
    source = run.config.reference.source
    params = initial if source == INITIAL else _load(source, run.model)
    check_reference(run.layout.path, source, params)
    return Reference(parts.reference, params, version, saved)


def check_reference(path: Path, source: str, params: Params) -> None:
    """Refuse a reference that is not the one that a run was started with; note it if it has just been made.

    Args:
        path: The run directory.
        source: Where the reference comes from.
        params: Its host parameters.

    Raises:
        ConfigError: It has changed, or the record is damaged.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params)
    digest = digest_of({jax.tree_util.keystr(where): np.asarray(leaf) for where, leaf in leaves})
    check_origin(path / _FILE, Origin(source, digest), "the reference policy")


def _load(source: str, model: ModelConfig) -> Params:
    found, params = load_model(reference_path(source), num_real_tokens=model.num_real_tokens)
    refuse_other_model(source, found, model)
    return params
