from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, PartitionSpec

from forebay.objectives import (
    Diagnostics,
    LossInputs,
    LossSums,
    ObjectiveSettings,
    batch_denominator,
    count_fresh,
    summarize,
)
from forebay.objectives.build import build_objective
from forebay.objectives.corrections import truncated_weight
from forebay.objectives.reductions import sum_over_sequences, sum_over_tokens
from tests.golden import oracle
from tests.unit.objectives.driver import clip_bounds_of

CASES = json.loads((Path(__file__).parent / "expected.json").read_text())
NAN = math.nan
LOSSES = ["decoupled_ppo", "ppo_clip", "cispo", "dppo", "topr", "reinforce"]
OPEN = {"tis_cap": None, "geometric_low": None, "geometric_high": None}


def differentiated(settings: ObjectiveSettings) -> Callable[..., Any]:
    return jax.value_and_grad(build_objective(settings), has_aux=True)


@functools.cache
def compiled(settings: ObjectiveSettings) -> Callable[..., Any]:
    return jax.jit(differentiated(settings))


def evaluate(
    settings: ObjectiveSettings,
    packed: oracle.Packed,
    denominator: float | None = None,
    jit: bool = True,
) -> tuple[float, np.ndarray, LossSums]:
    """Value, gradient by logprobs and sums, float32; what is not compiled begins sooner."""
    assert packed.logprobs.dtype == np.float32
    inputs = LossInputs(
        packed.loss_mask,
        packed.advantages,
        packed.behavior_logprobs,
        packed.proximal_logprobs,
        packed.segment_ids,
        packed.staleness,
        packed.reference_logprobs,
        clip_bounds_of(settings, packed, packed),
    )
    if denominator is None:
        denominator = batch_denominator(settings, count_fresh(packed.loss_mask, packed.segment_ids))
    function = compiled(settings) if jit else differentiated(settings)
    (loss, sums), grad = function(
        jnp.asarray(packed.logprobs),
        jnp.asarray(packed.entropy),
        LossInputs(*(None if array is None else jnp.asarray(array) for array in inputs)),
        jnp.float32(denominator),
    )
    assert all(value.dtype == jnp.float32 and value.shape == () for value in sums)
    return float(loss), np.asarray(grad), jax.device_get(sums)


def rows(*values: list[float | None]) -> np.ndarray:
    return np.array([[NAN if v is None else v for v in row] for row in values], dtype=np.float32)


def one_row(
    current: list[float],
    behavior: list[float | None],
    advantage: list[float],
    mask: list[int] | None = None,
    proximal: list[float] | None = None,
) -> oracle.Packed:
    length = len(current)
    return oracle.Packed(
        logprobs=rows(current),
        entropy=np.zeros((1, length), dtype=np.float32),
        loss_mask=np.array([mask or [1] * length], dtype=bool),
        advantages=rows(advantage),
        behavior_logprobs=rows(behavior),
        proximal_logprobs=rows(proximal or [NAN] * length),
        segment_ids=np.ones((1, length), dtype=np.int32),
        staleness=np.zeros((1, length), dtype=np.int32),
        reference_logprobs=rows([NAN] * length),
        place=[],
    )


def settings_of(recipe: oracle.Recipe) -> ObjectiveSettings:
    return ObjectiveSettings(
        loss=recipe.loss,
        proximal=recipe.proximal if recipe.loss == "decoupled_ppo" else "current",
        ratio=recipe.ratio,
        clip_low=recipe.clip_low,
        clip_high=recipe.clip_high,
        clip_rule=recipe.clip_rule,
        second_moment_limit=recipe.second_moment_limit,
        balance_target=recipe.balance_target,
        balance_clip_low=recipe.balance_clip_low,
        balance_clip_high=recipe.balance_clip_high,
        balance_step=recipe.balance_step,
        dual_clip=None if math.isinf(recipe.dual_clip) else recipe.dual_clip,
        tv_limit=recipe.tv_limit,
        correction=recipe.correction,
        tis_cap=recipe.cap,
        geometric_low=recipe.geometric[0],
        geometric_high=recipe.geometric[1],
        icepop_low=recipe.icepop[0],
        icepop_high=recipe.icepop[1],
        entropy_coef=recipe.entropy_coef,
        reduction=recipe.reduction,
        constant_tokens=recipe.constant_tokens if recipe.reduction == "constant" else None,
        kl_coef=recipe.kl_coef,
        kl_estimator=recipe.kl,
        kl_in=recipe.kl_in,
    )


RECIPES = {
    "decoupled-default": oracle.Recipe(cap=2.0, geometric=(0.8, 1.25)),
    "decoupled-current": oracle.Recipe(proximal="current", cap=2.0, geometric=(0.8, 1.25)),
    "decoupled-icepop-sequence": oracle.Recipe(icepop=(0.5, 1.5), reduction="sequence"),
    "decoupled-entropy": oracle.Recipe(cap=1.5, entropy_coef=0.1),
    "ppo-token": oracle.Recipe(loss="ppo_clip"),
    "ppo-constant": oracle.Recipe(loss="ppo_clip", clip_high=0.2, reduction="constant", constant_tokens=16),
    "reinforce-cap": oracle.Recipe(loss="reinforce", cap=1.2, reduction="sequence"),
    "reinforce-both": oracle.Recipe(loss="reinforce", cap=2.0, geometric=(0.8, 1.25), icepop=(0.5, 2.0)),
    "cross-entropy": oracle.Recipe(loss="cross_entropy", cap=2.0, geometric=(0.8, 1.25)),
    "cross-entropy-sequence": oracle.Recipe(loss="cross_entropy", reduction="sequence"),
}
UNCOMPILED = {
    "decoupled-uncorrected": oracle.Recipe(correction="none"),
    "decoupled-sequence-tis": oracle.Recipe(correction="sequence_tis", cap=1.3),
    "decoupled-sequence-mis": oracle.Recipe(correction="sequence_mis", cap=1.3, reduction="sequence"),
    "decoupled-token-mis": oracle.Recipe(correction="token_mis", cap=1.3),
    "decoupled-interpolated": oracle.Recipe(proximal="interpolated", cap=1.2, geometric=(0.8, 1.25)),
    "decoupled-turn": oracle.Recipe(ratio="turn", clip_low=0.05, clip_high=0.1, cap=2.0),
    "decoupled-interpolated-sequence": oracle.Recipe(
        proximal="interpolated", ratio="sequence", clip_low=0.01, clip_high=0.02, correction="sequence_tis"
    ),
    "ppo-dual": oracle.Recipe(loss="ppo_clip", dual_clip=1.2),
    "m2po": oracle.Recipe(
        loss="ppo_clip", clip_rule="second_moment", clip_low=0.1, clip_high=0.1, second_moment_limit=0.15
    ),
    "m2po-wide": oracle.Recipe(loss="ppo_clip", clip_rule="second_moment", second_moment_limit=0.001),
    "bapo": oracle.Recipe(
        loss="ppo_clip",
        clip_rule="balance",
        clip_low=0.4,
        clip_high=0.1,
        balance_target=2.0,
        dual_clip=1.6,
        reduction="sequence",
    ),
    "bapo-met": oracle.Recipe(loss="ppo_clip", clip_rule="balance", clip_low=0.3, balance_target=0.01),
    "decoupled-dual": oracle.Recipe(dual_clip=1.5, cap=2.0),
    "gspo": oracle.Recipe(
        loss="ppo_clip", ratio="sequence", clip_low=0.05, clip_high=0.06, reduction="sequence"
    ),
    "ppo-turn": oracle.Recipe(loss="ppo_clip", ratio="turn", clip_low=0.1, clip_high=0.1),
    "cispo": oracle.Recipe(loss="cispo", clip_low=0.1, clip_high=0.2),
    "cispo-open-below": oracle.Recipe(loss="cispo", clip_low=1.0, clip_high=0.2, geometric=(0.8, 1.25)),
    "dppo": oracle.Recipe(loss="dppo", tv_limit=0.05, cap=1.5),
    "topr": oracle.Recipe(loss="topr"),
    "topr-constant": oracle.Recipe(loss="topr", reduction="constant", constant_tokens=8),
    "reinforce-sequence": oracle.Recipe(loss="reinforce", correction="sequence_tis", cap=1.1),
    "reinforce-none": oracle.Recipe(loss="reinforce", correction="none", icepop=(0.5, 2.0)),
    "kl-k1-reward": oracle.Recipe(loss="ppo_clip", kl="k1", kl_in="reward", kl_coef=0.3),
    "kl-k2": oracle.Recipe(loss="cispo", kl="k2", kl_coef=0.3, reduction="sequence"),
    "kl-k2-reward": oracle.Recipe(kl="k2", kl_in="reward", kl_coef=0.3, cap=2.0, geometric=(0.8, 1.25)),
    "kl-k3": oracle.Recipe(cap=2.0, geometric=(0.8, 1.25), kl_coef=0.3),
    "kl-k3-reward": oracle.Recipe(loss="reinforce", kl="k3", kl_in="reward", kl_coef=0.3, cap=2.0),
}


ALL_RECIPES = RECIPES | UNCOMPILED


@pytest.mark.parametrize("name", ALL_RECIPES)
def test_loss_and_gradient_match_the_oracle(name: str) -> None:
    recipe = ALL_RECIPES[name]
    batch = oracle.random_batch(seed=11, lengths=[5, 3, 9, 1, 6])
    packed = oracle.pack(batch, layout=[[0, 1], [2, 3], [4], []], length=12)
    loss, grad, sums = evaluate(settings_of(recipe), packed, jit=name in RECIPES)
    assert loss == pytest.approx(oracle.loss(batch, recipe), rel=2e-6)
    expected = np.zeros_like(grad)
    for slopes, places in zip(oracle.gradient(batch, recipe), packed.place, strict=True):
        for slope, (b, t) in zip(slopes, places, strict=True):
            expected[b, t] = slope
    np.testing.assert_allclose(grad, expected, rtol=1e-5, atol=1e-7)
    gone = [oracle.rejected(sequence, recipe) for sequence in batch]
    assert sums.rejected_tokens == sum(sum(row) for row in gone)
    figures = summarize(sums)
    assert figures.fresh_tokens == packed.loss_mask.sum() > 0
    assert figures.sequences == sum(any(t.trained for t in sequence) for sequence in batch)
    assert figures.ess == pytest.approx(oracle.effective_sample_size(batch, recipe), rel=1e-5)
    assert figures.mask_fraction == pytest.approx(1 - packed.loss_mask.sum() / 24)
    if recipe.loss != "cross_entropy":
        assert figures.sequence_ess == pytest.approx(oracle.sequence_effective_sample_size(batch), rel=1e-5)
    if recipe.loss != "cross_entropy":
        assert figures.gain == pytest.approx(oracle.gain(batch, recipe), rel=1e-5)
        divergence = oracle.divergence(batch)
        if not recipe.kl_coef:
            divergence["reference_kl"] = 0.0
        for name, value in divergence.items():
            assert getattr(figures, name) == pytest.approx(value, rel=1e-5, abs=1e-6), name


def test_recipes_reject_clip_and_cap_something() -> None:
    batch = oracle.random_batch(seed=11, lengths=[5, 3, 9, 1, 6])
    packed = oracle.pack(batch, layout=[[0, 1], [2, 3], [4], []], length=12)
    counted = {
        name: evaluate(settings_of(recipe), packed, jit=name in RECIPES)[2]
        for name, recipe in ALL_RECIPES.items()
    }
    assert 0 < counted["decoupled-default"].rejected_tokens < packed.loss_mask.sum()
    assert counted["decoupled-default"].rejected_sequences >= 1
    assert counted["ppo-token"].clipped_tokens > 0
    assert counted["reinforce-cap"].capped_tokens > 0
    assert counted["reinforce-both"].rejected_tokens > 0
    assert counted["cross-entropy"].rejected_tokens == 0
    for name in ("token-mis", "sequence-mis", "interpolated"):
        assert 0 < counted[f"decoupled-{name}"].rejected_tokens < packed.loss_mask.sum(), name
    for name in ("decoupled-sequence-tis", "cispo", "cispo-open-below", "dppo", "topr", "reinforce-sequence"):
        assert 0 < counted[name].capped_tokens < packed.loss_mask.sum(), name
    for name in ("decoupled-turn", "gspo", "ppo-turn", "dppo", "decoupled-interpolated-sequence"):
        assert 0 < counted[name].clipped_tokens < packed.loss_mask.sum(), name
    for name in ("m2po", "m2po-wide", "bapo", "bapo-met"):
        assert 0 < counted[name].clipped_tokens < packed.loss_mask.sum(), name
    # What the rules found, not what the settings begin with.
    low, high = oracle.clip_bounds(batch, ALL_RECIPES["m2po"])
    assert (low, high) == (pytest.approx(0.649207, rel=1e-5), pytest.approx(1.540341, rel=1e-5))
    assert oracle.clip_bounds(batch, ALL_RECIPES["m2po-wide"]) == (0.8, 1.28)
    assert oracle.clip_bounds(batch, ALL_RECIPES["bapo-met"]) == (0.7, 1.28)
    low, high = oracle.clip_bounds(batch, ALL_RECIPES["bapo"])
    assert (low, high) == (pytest.approx(0.8), pytest.approx(1.4))
    assert counted["ppo-dual"].clipped_tokens > counted["ppo-token"].clipped_tokens


def test_c07_only_action_tokens_are_trained_and_counted() -> None:
    case = CASES["C07"]
    logp, mask = case["input"]["logp"], case["input"]["mask"]
    packed = one_row(logp, logp, [2.0] * 6, mask)
    loss, _, sums = evaluate(ObjectiveSettings(loss="reinforce"), packed)
    assert sums.tokens == case["expect"]["loss_tokens"]
    assert loss == pytest.approx(case["expect"]["reinforce_loss_token_mean"])
    loss, grad, _ = evaluate(ObjectiveSettings(loss="ppo_clip"), packed)
    assert loss == pytest.approx(case["expect"]["surrogate_loss_ratio1"])
    np.testing.assert_allclose(grad[0], [-2 / 3, -2 / 3, 0, 0, 0, -2 / 3], rtol=1e-6)


def test_c08_sampled_end_of_sequence_is_trained_and_padding_is_not() -> None:
    expect = CASES["C08"]["expect"]
    first_two, eos = -4.356074, expect["sum_logp"] + 4.356074
    packed = one_row([-2.0, first_two + 2.0, eos, NAN, NAN], [None] * 5, [NAN] * 5, expect["mask"])
    loss, grad, sums = evaluate(ObjectiveSettings(loss="cross_entropy"), packed)
    assert sums.tokens == expect["n_tokens"]
    assert loss * expect["n_tokens"] == pytest.approx(-expect["sum_logp"], rel=1e-6)
    np.testing.assert_allclose(grad[0], [-1 / 3, -1 / 3, -1 / 3, 0, 0], rtol=1e-6)
    assert sums.missing_tokens == 0


def test_c12_zero_advantages_give_zero_loss_and_gradient() -> None:
    packed = one_row([-1.0, -0.3, -2.0], [-1.4, -0.1, -2.2], [0.0] * 3)
    loss, grad, _ = evaluate(ObjectiveSettings(), packed)
    assert loss == 0.0
    assert np.abs(grad).max() == 0.0


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_c17_micro_batches_add_up_to_the_token_mean(parts: int) -> None:
    case = CASES["C17"]
    losses = case["input"]["per_token_loss"]
    batch = [[oracle.Token(-value, 0.0, 0.0, 1.0) for value in sequence] for sequence in losses]
    settings = ObjectiveSettings(loss="cross_entropy")
    whole = oracle.pack(batch, [[0], [1], [2], [3]], length=10)
    _, expected_grad, _ = evaluate(settings, whole)
    denominator = batch_denominator(settings, count_fresh(whole.loss_mask, whole.segment_ids))
    size = 4 // parts
    results = [
        evaluate(settings, oracle.pack(batch, [[i] for i in range(first, first + size)], 10), denominator)
        for first in range(0, 4, size)
    ]
    assert sum(loss for loss, _, _ in results) == pytest.approx(case["expect"][f"accum_{parts}"])
    np.testing.assert_allclose(np.concatenate([grad for _, grad, _ in results]), expected_grad, rtol=1e-6)
    summed = LossSums(*(sum(values) for values in zip(*(sums for _, _, sums in results), strict=True)))
    assert summarize(summed).loss == pytest.approx(case["expect"]["token_mean"])
    assert summed.tokens == 16


def test_c17_sequence_mean_is_another_number() -> None:
    losses = CASES["C17"]["input"]["per_token_loss"]
    batch = [[oracle.Token(-value, 0.0, 0.0, 1.0) for value in sequence] for sequence in losses]
    settings = ObjectiveSettings(loss="cross_entropy", reduction="sequence")
    loss, _, _ = evaluate(settings, oracle.pack(batch, [[0], [1, 2], [3]], length=10))
    assert loss == pytest.approx(CASES["C17"]["expect"]["seq_mean_token_mean"])


def test_c18_every_token_of_two_devices_weighs_the_same() -> None:
    case = CASES["C18"]
    batch = [
        [oracle.Token(-value, 0.0, 0.0, 1.0) for value in losses]
        for losses in case["input"]["per_rank_token_loss"]
    ]
    packed = oracle.pack(batch, [[0], [1]], length=5)
    settings = ObjectiveSettings(loss="cross_entropy")
    denominator = batch_denominator(settings, count_fresh(packed.loss_mask, packed.segment_ids))
    mesh = jax.make_mesh((2,), ("data",), devices=jax.devices()[:2], axis_types=(AxisType.Auto,))
    inputs = LossInputs(packed.loss_mask, *(packed.advantages,) * 3, packed.segment_ids)

    def of_shard(logprobs: jax.Array, inputs: LossInputs) -> tuple[jax.Array, jax.Array]:
        (loss, _), grad = differentiated(settings)(
            logprobs, jnp.zeros_like(logprobs), inputs, jnp.float32(denominator)
        )
        return jax.lax.psum(loss, "data"), grad

    rows = PartitionSpec("data")
    step = jax.shard_map(of_shard, mesh=mesh, in_specs=(rows, rows), out_specs=(PartitionSpec(), rows))
    loss, grad = jax.jit(step)(jnp.asarray(packed.logprobs), inputs)
    assert float(loss) == pytest.approx(case["expect"]["global_token_mean"])
    weights = -np.asarray(grad)[packed.loss_mask]
    np.testing.assert_allclose(weights, [case["expect"]["weight_per_token"]] * 6, rtol=1e-5)


@pytest.mark.parametrize("layout", [[[0, 1], [2], []], [[0], [1], [2]], [[2, 0], [], [1]]])
def test_c19_packed_neighbors_are_separate_sequences(layout: list[list[int]]) -> None:
    case = CASES["C19"]
    batch = [
        [oracle.Token(-value, 0.0, 0.0, 1.0) for value in sequence]
        for sequence in case["input"]["seqs"].values()
    ]
    packed = oracle.pack(batch, layout, length=8)
    wanted = {
        "token_mean": {"reduction": "token"},
        "seq_mean_token_mean": {"reduction": "sequence"},
        "seq_mean_token_sum": {"reduction": "constant", "constant_tokens": 1},
        "seq_mean_token_sum_norm_8": {"reduction": "constant", "constant_tokens": 8},
    }
    for name, choice in wanted.items():
        loss, _, _ = evaluate(ObjectiveSettings(loss="cross_entropy", **choice), packed)
        assert loss == pytest.approx(case["expect"][name], rel=1e-6), name


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("token_mean", {"reduction": "token"}),
        ("seq_mean_token_mean", {"reduction": "sequence"}),
        ("seq_mean_token_sum", {"reduction": "constant", "constant_tokens": 1}),
        ("dr_grpo_const_10", {"reduction": "constant", "constant_tokens": 10}),
    ],
)
def test_c20_each_reduction_weighs_tokens_as_its_name_says(name: str, choice: dict[str, object]) -> None:
    expect = CASES["C20"]["expect"]
    batch = [[oracle.Token(-1.0, -1.0, -1.0, 1.0)] * 2, [oracle.Token(-1.0, -1.0, -1.0, -1.0)] * 8]
    loss, grad, _ = evaluate(ObjectiveSettings(loss="ppo_clip", **choice), oracle.pack(batch, [[0, 1]], 10))
    assert loss == pytest.approx(expect["loss"][name], abs=1e-7)
    positive, negative = expect["weight_of_one_token"][name]
    np.testing.assert_allclose(grad[0], [-positive] * 2 + [-negative] * 8, rtol=1e-6)


def test_c24_filtered_token_cannot_poison_the_loss() -> None:
    case = CASES["C24"]
    settings = ObjectiveSettings(**OPEN, icepop_low=0.5, icepop_high=5.0)
    packed = one_row(case["input"]["current_logp"], case["input"]["behaviour_logp"], [1.0, 1.0])
    loss, grad, sums = evaluate(settings, packed)
    assert loss == case["expect"]["loss_sum_over_2_tokens_mean"]
    np.testing.assert_array_equal(grad[0], case["expect"]["grad_wrt_current_logp"])
    assert sums.rejected_tokens == 1
    assert sums.clamped_tokens == 1
    assert np.isfinite(list(sums)).all()


@pytest.mark.parametrize("loss_name", LOSSES)
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_c24_log_ratio_of_a_thousand_stays_finite(loss_name: str, advantage: float) -> None:
    extreme = [-1.0, -1.0]
    packed = one_row(extreme, [-1001.0, -1.0], [advantage] * 2)
    loss, grad, sums = evaluate(ObjectiveSettings(loss=loss_name, **OPEN), packed, jit=False)
    assert np.isfinite(loss)
    assert np.isfinite(grad).all()
    assert np.isfinite(list(sums)).all()
    assert sums.clamped_tokens == 1


def test_c25_token_without_behavior_logprob_is_trained_with_ratio_one() -> None:
    case = CASES["C25"]
    settings = ObjectiveSettings(loss="ppo_clip", clip_low=0.2, clip_high=0.2, **OPEN)
    for lost in (None, -math.inf):
        behavior = [lost if value is None else value for value in case["input"]["behaviour"]]
        loss, grad, sums = evaluate(settings, one_row(case["input"]["current"], behavior, [1.0] * 3))
        assert loss == pytest.approx(case["expect"]["policy_ratio_one"]["token_mean"], rel=1e-6)
        np.testing.assert_allclose(grad[0], [0.0, -1 / 3, -0.904837 / 3], rtol=1e-5)
        assert sums.missing_tokens == 1
        assert np.isfinite(list(sums)).all()


def test_c26_logprobs_at_the_sampling_temperature_give_ratio_one() -> None:
    case = CASES["C26"]
    sampled, raw = case["expect"]["table"]["0.6"], case["wrong"]["table"]["0.6"]["raw"]
    right = summarize(evaluate(ObjectiveSettings(), one_row(sampled, sampled, [1.0] * 4))[2])
    assert (
        right.ratio_mean
        == right.weight_mean
        == right.ess
        == case["expect"]["first_token_ratio_trainer_over_engine"]
    )
    assert right.k3 == right.logprob_mismatch == 0.0
    wrong = summarize(evaluate(ObjectiveSettings(), one_row(sampled, raw, [1.0] * 4))[2])
    assert wrong.logprob_mismatch == pytest.approx(np.abs(np.subtract(sampled, raw)).mean(), rel=1e-5)


def test_c28_correction_weighs_by_proximal_over_behavior() -> None:
    case = CASES["C28"]
    given, expect = case["input"], case["expect"]
    settings = ObjectiveSettings(
        loss="decoupled_ppo",
        proximal="recomputed",
        clip_low=given["clip"],
        clip_high=given["clip"],
        **{**OPEN, "tis_cap": given["cap"]},
    )
    packed = one_row(given["current"], given["behaviour"], given["A"], proximal=given["proximal"])
    loss, grad, sums = evaluate(settings, packed)
    assert loss == pytest.approx(expect["token_mean"], abs=1e-6)
    np.testing.assert_allclose(grad[0], expect["grad_wrt_current"], atol=1e-6)
    assert summarize(sums).ess == pytest.approx(expect["ess"], abs=1e-6)
    assert sums.weight_sum == pytest.approx(sum(expect["w"]), abs=1e-6)
    assert sums.ratio_sum == pytest.approx(sum(expect["r"]), abs=1e-5)
    assert sums.capped_tokens == 1


def test_c29_ratio_is_taken_to_the_policy_that_acted() -> None:
    expect = CASES["C29"]["expect"]
    settings = ObjectiveSettings(loss="ppo_clip", clip_low=0.2, clip_high=0.2, **OPEN)
    clipped = 0.0
    for current, behavior, advantage, name in [
        (-1.0, -1.5, 1.0, "_Apos"),
        (-1.0, -1.5, -1.0, "_Aneg"),
        (-1.5, -1.0, 1.0, "2_Apos"),
        (-1.5, -1.0, -1.0, "2_Aneg"),
    ]:
        loss, grad, sums = evaluate(settings, one_row([current], [behavior], [advantage]))
        assert loss == pytest.approx(expect[f"loss{name}"], abs=1e-6)
        assert grad[0, 0] == pytest.approx(expect[f"grad{name}"], abs=1e-6)
        assert sums.ratio_sum == pytest.approx(expect["ratio2" if name[0] == "2" else "ratio"], abs=1e-6)
        clipped += float(sums.clipped_tokens)
    assert clipped / 4 == expect["clip_fraction_of_4"]


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_c30_long_sequence_is_judged_on_logs(sign: float) -> None:
    case = CASES["C30"]
    length, per_token = case["input"]["tokens"], sign * case["input"]["per_token_log_ratio"]
    packed = one_row([-1.0] * length, [-1.0 - per_token] * length, [1.0] * length)
    loss, grad, sums = evaluate(ObjectiveSettings(), packed)
    figures = summarize(sums)
    assert figures.log_ratio_product == pytest.approx(sign * case["expect"]["log_product"], rel=1e-5)
    assert figures.geometric_ratio == pytest.approx(case["expect"]["geometric_mean"] ** sign, rel=1e-6)
    assert figures.rejected_fraction == 0.0
    assert np.isfinite(loss)
    assert np.isfinite(grad).all()
    weight, capped = truncated_weight(jnp.full((1, 1), figures.log_ratio_product), case["input"]["cap"])
    if sign < 0:
        assert (float(weight[0, 0]), bool(capped[0, 0])) == (2.0, True)
    else:
        assert (float(weight[0, 0]), bool(capped[0, 0])) == (0.0, False)


def test_c47_row_without_trained_tokens_counts_for_nothing() -> None:
    case = CASES["C47"]
    losses = np.array(case["input"]["per_token_loss"], np.float32)
    mask = np.array(case["input"]["mask"], bool)
    segments = np.ones((2, 3), dtype=np.int32)
    counts = count_fresh(mask, segments)
    token, sequence = ObjectiveSettings(), ObjectiveSettings(reduction="sequence")
    given = (jnp.asarray(losses), jnp.asarray(mask), jnp.asarray(mask), jnp.asarray(segments))
    by_token = sum_over_tokens(*given) / batch_denominator(token, counts)
    by_sequence = sum_over_sequences(*given)
    assert float(by_token) == case["expect"]["token_mean"]
    assert (
        float(by_sequence) / batch_denominator(sequence, counts)
        == case["expect"]["seq_mean_token_mean_over_nonempty"]
    )


@pytest.mark.parametrize("reduction", ["token", "sequence"])
@pytest.mark.parametrize("loss_name", [*LOSSES, "cross_entropy"])
def test_c47_batch_without_trained_tokens_has_loss_zero(loss_name: str, reduction: str) -> None:
    packed = one_row([NAN, math.inf, -math.inf], [None] * 3, [NAN] * 3, mask=[0, 0, 0])
    settings = ObjectiveSettings(loss=loss_name, reduction=reduction, entropy_coef=0.1)
    loss, grad, sums = evaluate(settings, packed, jit=False)
    assert loss == CASES["C47"]["expect"]["all_masked_batch"]
    np.testing.assert_array_equal(grad, np.zeros((1, 3)))
    assert summarize(sums) == Diagnostics(
        **dict.fromkeys(Diagnostics.__dataclass_fields__, 0) | {"mask_fraction": 1.0, "geometric_ratio": 1.0}
    )
