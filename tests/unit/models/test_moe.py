"""The mixture of experts against a loop over tokens in float64, on one device and over a mesh.

Legend: S tokens, D model width, E experts, F width of one expert.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from forebay.errors import ModelError
from forebay.models.experts import Experts
from forebay.models.moe import RouterSums, mixture, route
from forebay.models.settings import MeshSettings
from forebay.models.sharding import UNSHARDED, Axes, make_mesh, split_specs

D, F, S = 8, 12, 320
EXPERTS = Experts(number=8, per_token=3, width=F)
IS_REAL = np.arange(S) % 5 != 4


def layer_of(experts: Experts, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    shapes = {
        "router": (D, experts.number),
        "expert_gate": (experts.number, D, F),
        "expert_up": (experts.number, D, F),
        "expert_down": (experts.number, F, D),
    }
    return {name: rng.normal(0, 0.5, shape).astype(np.float32) for name, shape in shapes.items()}


def hidden(seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(S, D)).astype(np.float32)


def oracle(h: np.ndarray, layer: dict[str, np.ndarray], experts: Experts) -> np.ndarray:
    """Route and mix token by token, in float64."""
    out = np.zeros((S, D))
    for token in np.flatnonzero(IS_REAL):
        x = h[token].astype(np.float64)
        logits = x @ layer["router"]
        probability = np.exp(logits - logits.max())
        probability /= probability.sum()
        chosen = np.argsort(-probability)[: experts.per_token]
        total = probability[chosen].sum() if experts.renormalize else 1.0
        for expert in chosen:
            gate, up = x @ layer["expert_gate"][expert], x @ layer["expert_up"][expert]
            wide = gate / (1 + np.exp(-gate)) * up
            out[token] += probability[expert] / total * (wide @ layer["expert_down"][expert])
    return out


@pytest.mark.parametrize("renormalize", [True, False])
def test_each_token_gets_the_weighted_outputs_of_its_likeliest_experts(renormalize: bool) -> None:
    experts = Experts(number=8, per_token=3, width=F, renormalize=renormalize)
    h, layer = hidden(), layer_of(experts)
    out, _ = mixture(
        jnp.asarray(h), jax.tree.map(jnp.asarray, layer), experts, jnp.asarray(IS_REAL), UNSHARDED
    )
    np.testing.assert_allclose(out, oracle(h, layer, experts), rtol=1e-4, atol=1e-5)


def test_padding_is_neither_routed_nor_counted() -> None:
    h, layer = hidden(), layer_of(EXPERTS)
    _, sums = route(jnp.asarray(h), jnp.asarray(layer["router"]), EXPERTS, jnp.asarray(IS_REAL))
    _, alone = route(
        jnp.asarray(h[IS_REAL]), jnp.asarray(layer["router"]), EXPERTS, jnp.ones(IS_REAL.sum(), bool)
    )
    assert sums.tokens == IS_REAL.sum()
    assert sums.assigned.sum() == IS_REAL.sum() * EXPERTS.per_token
    for got, expected in zip(sums, alone, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5)


def test_the_router_is_in_float32_whatever_the_type_of_the_rest() -> None:
    """In bfloat16 these two logits would be equal, and the first expert would be chosen."""
    h = jnp.ones((1, 2), jnp.bfloat16)
    router = jnp.asarray([[256.0, 256.0], [0.0, 0.5]], jnp.bfloat16)
    routing, _ = route(h, router, Experts(2, 1, 4), jnp.ones(1, bool))
    assert routing.experts.tolist() == [[1]]
    assert routing.weights.dtype == jnp.float32


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        ({"number": 0}, "number must be positive"),
        ({"per_token": 9}, "more experts than there are"),
        ({"balance_coefficient": -1.0}, "router_aux_loss_coef"),
    ],
)
def test_experts_that_cannot_be_are_refused(wrong: dict[str, Any], named: str) -> None:
    with pytest.raises(ModelError, match=named):
        Experts(**{"number": 8, "per_token": 2, "width": 4} | wrong)


SPECS = {
    "router": PartitionSpec(),
    "expert_gate": PartitionSpec("expert", None, "tensor"),
    "expert_up": PartitionSpec("expert", None, "tensor"),
    "expert_down": PartitionSpec("expert", "tensor", None),
}
ROWS = PartitionSpec(("data", "expert", "tensor"))


def varying(value: Any, axes: Axes) -> Any:
    same = tuple(name for name in axes.names if name not in jax.typeof(value).manual_axis_type.varying)
    return jax.lax.pcast(value, same, to="varying") if same else value


def whole(value: Any, axes: Axes) -> Any:
    return jax.lax.psum(varying(value, axes), axes.names) if axes.names else value


def sharded(
    h: np.ndarray, layer: dict[str, np.ndarray], experts: Experts, **sizes: int
) -> tuple[Any, RouterSums, Any]:
    """Return outputs, sums over all shards, and gradients of a weighted sum of the outputs."""
    mesh = make_mesh(MeshSettings(**sizes))
    axes = Axes.of(mesh)
    weights = np.random.default_rng(7).normal(size=(S, D)).astype(np.float32)

    def loss(h: Any, layer: Any, is_real: Any, weights: Any) -> Any:
        whole = jax.tree.map(lambda leaf: varying(leaf, axes), layer)
        every = is_real if axes.tensor is None else axes.all_tokens(is_real)
        out, sums = mixture(h, whole, experts, every, axes)
        return (out * weights).sum(), (out, sums)

    def run(h: Any, layer: Any, is_real: Any, weights: Any) -> Any:
        gradients, (out, sums) = jax.grad(loss, (0, 1), has_aux=True)(h, layer, is_real, weights)
        summed = jax.tree.map(lambda value: whole(value, axes), sums)
        return out, summed, gradients

    return jax.jit(
        jax.shard_map(
            run,
            mesh=mesh,
            in_specs=split_specs(mesh, (ROWS, SPECS, ROWS, ROWS)),
            out_specs=split_specs(mesh, (ROWS, PartitionSpec(), (ROWS, SPECS))),
        )
    )(h, layer, IS_REAL, weights)


@pytest.mark.parametrize(
    "sizes",
    [{"expert": 4, "data": 2}, {"expert": 2, "tensor": 2}],
    ids=str,
)
@pytest.mark.parametrize("skew", [0.0, 20.0], ids=["even", "all to one shard"])
def test_shards_of_experts_give_what_one_device_gives(sizes: dict[str, int], skew: float) -> None:
    """The second case needs further rounds: nearly every token goes to the first experts."""
    h, layer = hidden(), layer_of(EXPERTS)
    h[:, 0] = 1.0
    layer["router"][0, : EXPERTS.per_token] += skew
    out, sums, gradients = sharded(h, layer, EXPERTS, **sizes)
    one_out, one_sums, one_gradients = sharded(h, layer, EXPERTS)
    np.testing.assert_allclose(out, one_out, rtol=1e-5, atol=1e-5)
    for name, got in sums._replace(spilled=one_sums.spilled)._asdict().items():
        np.testing.assert_allclose(got, getattr(one_sums, name), rtol=1e-5, err_msg=name)
    for got, expected in zip(jax.tree.leaves(gradients), jax.tree.leaves(one_gradients), strict=True):
        scale = np.abs(expected).max()
        np.testing.assert_allclose(got / scale, expected / scale, atol=1e-5)
    if skew:
        assert sums.spilled > 0
