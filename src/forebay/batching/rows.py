"""The arrays of one micro-batch, as they go into the compiled train step. No JAX is imported here.

Legend: B rows, T tokens.
"""

from __future__ import annotations

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
)
