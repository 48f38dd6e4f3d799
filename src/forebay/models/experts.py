"""What a mixture of experts is: its sizes and the rules of its router; a plain record, no JAX.

Every block of such a model has the experts in place of the one feed-forward layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

from forebay.errors import ModelError

# Even shards need this many rounds, which have room for so many times their rows.
_ROUNDS: Final = 2
_ROOM: Final = 1.2
# Rows are rounded up to whole tiles of a kernel, where that is little; else to what lies together in memory.
_TILE_ROWS: Final = 128
_FEW_ROWS: Final = 8


@dataclass(frozen=True, slots=True)
class Experts:
    """Sizes and rules of the experts of a model.

    Args:
        number: Experts of a block.
        per_token: How many of them each token goes to.
        width: Width of one expert.
        renormalize: Whether the weights of a token's experts are made to add up to 1; otherwise they are
            their probabilities among all experts.
        balance_coefficient: Weight of the load-balancing loss that the model was pretrained with
            (`router_aux_loss_coef`).

    Raises:
        ModelError: Sizes that contradict one another.
    """

    number: int
    per_token: int
    width: int
    renormalize: bool = True
    balance_coefficient: float = 0.001

    def __post_init__(self) -> None:
        for name in ("number", "per_token", "width"):
            if getattr(self, name) < 1:
                raise ModelError(f"experts: {name} must be positive", got=getattr(self, name))
        if self.per_token > self.number:
            raise ModelError(
                "a token cannot go to more experts than there are", got=self.per_token, limit=self.number
            )
        if not self.balance_coefficient >= 0:
            raise ModelError("router_aux_loss_coef must not be negative", got=self.balance_coefficient)

    def round_rows(self, num_tokens: int, num_shards: int) -> int:
        """Return how many rows a round of an exchange takes from one shard of experts to another.

        Two rounds have room for 1.2 times what each would send if all shards were sent as many.

        Args:
            num_tokens: Of a shard.
            num_shards: Shards of experts.

        Example:
            >>> Experts(number=128, per_token=8, width=768).round_rows(4096, 4)
            4992
        """
        room = num_tokens * self.per_token / num_shards * _ROOM / _ROUNDS
        multiple = _TILE_ROWS if room > 8 * _TILE_ROWS else _FEW_ROWS
        # A token goes to an expert once, whatever its choices are.
        return min(
            math.ceil(room / multiple) * multiple, num_tokens * min(self.per_token, self.number // num_shards)
        )

    def usual_rounds(self, num_tokens: int, num_shards: int) -> int:
        """Return how many rounds an exchange between shards takes that are sent equally many rows.

        Args:
            num_tokens: Of a shard.
            num_shards: Shards of experts.
        """
        even = num_tokens * self.per_token / num_shards
        return math.ceil(even / self.round_rows(num_tokens, num_shards))
