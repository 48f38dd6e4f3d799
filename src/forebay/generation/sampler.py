"""Sampling one token per slot, and its logprob under exactly the distribution that was sampled.

Legend: S slots, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt32


def sample(
    logits: Float[Array, "S V"],
    seeds: UInt32[Array, "S 2"],
    positions: Int[Array, " S"],
    temperature: Float[Array, " S"],
    top_p: Float[Array, " S"],
    top_k: Int[Array, " S"],
) -> tuple[Int[Array, " S"], Float[Array, " S"]]:
    """Draw a token per slot from softmax(logits / temperature), cut by top-k, then top-p, where they are on.

    The randomness of a token is a function of its request's seed and its position alone, so neither the slot
    nor the other slots matter. At temperature 0 the likeliest token is returned with its logprob at
    temperature 1.

    Args:
        logits: [S, V] float32; -inf for ids that must not be drawn.
        seeds: [S, 2] uint32, high and low word of each request's seed.
        positions: [S] int32, place of the drawn token in its sequence.
        temperature: [S] float32, >= 0.
        top_p: [S] float32, 1 is off.
        top_k: [S] int32, 0 is off.

    Returns:
        tokens: [S] int32.
        logprobs: [S] float32, nats.

    References:
        Gumbel-max: Maddison, Tarlow and Minka, "A* Sampling", 2014, section 2.
    """
    logprobs = distribution(logits, temperature, top_p, top_k)
    noise = jax.vmap(_gumbel, in_axes=(0, 0, None))(seeds, positions, logits.shape[-1])
    scores = logprobs + jnp.where((temperature <= 0)[:, None], 0.0, noise)
    tokens = jnp.argmax(scores, axis=-1).astype(jnp.int32)
    return tokens, jnp.take_along_axis(logprobs, tokens[:, None], axis=-1)[:, 0]


def distribution(
    logits: Float[Array, "S V"],
    temperature: Float[Array, " S"],
    top_p: Float[Array, " S"],
    top_k: Int[Array, " S"],
) -> Float[Array, "S V"]:
    """Return the logprobs of the distribution that is sampled; at temperature 0 those at temperature 1.

    Args:
        logits: [S, V] float32; -inf for ids that must not be drawn.
        temperature: [S] float32, >= 0.
        top_p: [S] float32, 1 is off.
        top_k: [S] int32, 0 is off.

    Returns:
        [S, V] float32, nats; -inf for what cannot be drawn.
    """
    greedy = temperature <= 0
    scaled = logits / jnp.where(greedy, 1.0, temperature)[:, None]
    truncated = ~greedy & ((top_p < 1.0) | (top_k > 0))
    # Sorting the vocabulary costs more than everything else here, and training never asks for it.
    kept = jax.lax.cond(
        truncated.any(),
        lambda: jnp.where(truncated[:, None], support(scaled, top_p, top_k), True),
        lambda: jnp.ones_like(scaled, bool),
    )
    return jax.nn.log_softmax(jnp.where(kept, scaled, -jnp.inf), axis=-1)


def support(
    scaled: Float[Array, "S V"], top_p: Float[Array, " S"], top_k: Int[Array, " S"]
) -> Bool[Array, "S V"]:
    """Return which tokens truncated sampling keeps: the k likeliest, then the fewest whose mass reaches p.

    Tokens as likely as the last one kept are kept too.

    Args:
        scaled: [S, V] float32, logits after temperature.
        top_p: [S] float32, 1 is off.
        top_k: [S] int32, 0 is off.

    References:
        Holtzman et al., "The Curious Case of Neural Text Degeneration", 2020, section 3.1.
    """
    size = scaled.shape[-1]
    ranked = jnp.sort(scaled, axis=-1, descending=True)
    in_top_k = jnp.arange(size) < jnp.where(top_k > 0, top_k, size)[:, None]
    mass = jax.nn.softmax(jnp.where(in_top_k, ranked, -jnp.inf), axis=-1)
    before = jnp.cumsum(mass, axis=-1) - mass
    # Rounding may leave the total a hair below 1, so "off" must not depend on it.
    in_top_p = (before < top_p[:, None]) | (top_p >= 1.0)[:, None]
    least = jnp.min(jnp.where(in_top_k & in_top_p, ranked, jnp.inf), axis=-1, keepdims=True)
    return scaled >= least


def _gumbel(seed: UInt32[Array, "2"], position: Int[Array, ""], size: int) -> Float[Array, " V"]:
    key = jax.random.fold_in(jax.random.wrap_key_data(seed, impl="threefry2x32"), position)
    return jax.random.gumbel(key, (size,), jnp.float32)
