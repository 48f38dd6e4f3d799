"""The arrays of one micro-batch, as they go into the compiled train step. No JAX is imported here.

Legend: B rows, T tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, Final, NamedTuple

import numpy as np

# NumPy on the host and JAX in the compiled step share no base class.
Array = Any


class TrainRows(NamedTuple):
    """Packed rows of one bucket. Per-token arrays are aligned to the token itself, not to its predecessor.

    Attributes:
        tokens: [B, T] int32. Token ids; anything at padding.
        segment_ids: [B, T] int32. 0 at padding; the sequences packed in a row are numbered 1..n.
        positions: [B, T] int32. Position in the token's own sequence; restarts at 0 in every segment.
        loss_mask: [B, T] bool. True at fresh tokens: sampled by the policy and trained.
        advantages: [B, T] float32. Advantage of the token.
        behavior_logprobs: [B, T] float32, nats. Logprob under the policy that sampled the token.
        proximal_logprobs: [B, T] float32, nats. Logprob at the start of the update; the behavior's when
            unused.
        temperature: [B, T] float32. Temperature that the token was sampled with; 0 at padding is fine.
        staleness: [B, T] int32. Versions between the sampling of a trained token and this update.
        reference_logprobs: [B, T] float32, nats. Logprob under the reference policy.
        values: [B, T] float32. What the critic expected before the token was sampled, in units of return.
        value_targets: [B, T] float32. What it should have expected.
        ratio_bounds: [B, T] float32. Where the token's ratio is clipped, on the side it is pushed to.

    The last four are annotations: None but in a run whose objective asks for them, where the learner writes
    them just before the batch's first update. Which annotations a run has never changes, so that its programs
    do not.
    """

    tokens: Array
    segment_ids: Array
    positions: Array
    loss_mask: Array
    advantages: Array
    behavior_logprobs: Array
    proximal_logprobs: Array
    temperature: Array
    staleness: Array
    reference_logprobs: Array | None = None
    values: Array | None = None
    value_targets: Array | None = None
    ratio_bounds: Array | None = None


# Of each array, on the host and in the compiled step.
ROW_DTYPES: Final = TrainRows(
    tokens=np.int32,
    segment_ids=np.int32,
    positions=np.int32,
    loss_mask=np.bool_,
    advantages=np.float32,
    behavior_logprobs=np.float32,
    proximal_logprobs=np.float32,
    temperature=np.float32,
    staleness=np.int32,
    reference_logprobs=np.float32,
    values=np.float32,
    value_targets=np.float32,
    ratio_bounds=np.float32,
)
ANNOTATIONS: Final = frozenset(TrainRows._field_defaults)


def make_rows(make: Callable[[Any], Array], annotations: Collection[str] = ()) -> TrainRows:
    """Make the arrays of rows, one by one.

    Args:
        make: From an array's type to the array.
        annotations: Which of the `ANNOTATIONS` to make too; the others are None.

    Example:
        >>> make_rows(lambda dtype: np.zeros((1, 4), dtype)).reference_logprobs is None
        True
    """
    left_out = ANNOTATIONS.difference(annotations)
    arrays = ROW_DTYPES._asdict().items()
    return TrainRows(**{name: None if name in left_out else make(dtype) for name, dtype in arrays})


def map_rows(change: Callable[[Array], Array], rows: TrainRows) -> TrainRows:
    """Return rows with every array changed alike; what is None stays so."""
    return TrainRows(*(None if array is None else change(array) for array in rows))
