"""What a mixture of experts is: its sizes and the rules of its router; a plain record, no JAX.

Every block of such a model has the experts in place of the one feed-forward layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from forebay.errors import ModelError


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
