from __future__ import annotations

from dataclasses import replace

import pytest

from forebay.learner.fit.plan import Plan
from forebay.learner.fit.shapes import load_model
from forebay.learner.fit.work import active_parameters, attention_flops, count_work
from forebay.models.layer_kinds import LayerKind
from forebay.models.settings import MeshSettings

BLOCKS_8B = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
HEAD_8B = 128_256 * 4096


def test_matrices_that_a_token_meets_by_hand() -> None:
    assert active_parameters(load_model("llama3-8b")) == (BLOCKS_8B, HEAD_8B)


def test_a_token_meets_eight_of_128_experts_and_all_routers() -> None:
    blocks, head = active_parameters(load_model("qwen3-30b-a3b"))
    attention = 2048 * (2 * 32 + 2 * 4) * 128
    assert blocks == 48 * (attention + 8 * 3 * 2048 * 768 + 2048 * 128)
    assert head == 151_936 * 2048
    # Published: 3.3 billion activated, the embedding included.
    assert 3.3e9 < blocks + 2 * head < 3.4e9


def test_tokens_travel_to_their_experts_and_back() -> None:
    config = load_model("qwen3-30b-a3b")
    found = {one.kind: one for one in count_work(config, _plan(expert=8)).collectives}
    # 4,096 tokens of a device to eight experts in bfloat16, in two rounds of 2,560 rows to each of 8 shards,
    # there and back: forward, again, and backward.
    assert found["all-to-all"].axis == "expert"
    assert found["all-to-all"].count == 2 * 48 * 2 * 3
    assert found["all-to-all"].bytes == 2560 * 8 * 2048 * 2 * 7 // 8 * 2 * 48 * 2 * 3
    # What is not split over the experts is summed over their shards.
    experts = 48 * 128 * 3 * 2048 * 768
    summed = (30_532_122_624 - experts) * 4 * 2 * 7 / 8
    assert found["all-reduce"].axis == "expert"
    assert found["all-reduce"].bytes == pytest.approx(summed, rel=1e-9)


def test_operations_of_a_step_are_six_for_each_parameter_and_token_and_those_of_attention() -> None:
    config = load_model("llama3-8b")
    plan = Plan(MeshSettings(fsdp=8), 8, 4096, 2, "none")
    tokens = 2 * 8 * 4096
    # Queries meet 2,048.5 keys in the mean: scores and mixing, 2 operations each, backward twice that.
    attention = 32 * 4 * 32 * 128 * 2048.5 * tokens
    work = count_work(config, plan)
    assert work.model_flops == pytest.approx(6 * (BLOCKS_8B + HEAD_8B) * tokens + 3 * attention, rel=1e-12)
    # Logits are computed once more; attention's backward pass is 2.5 forward ones and not 2.
    more = 2 * HEAD_8B * tokens + 0.5 * attention
    assert work.device_flops == pytest.approx((work.model_flops + more) / 8, rel=1e-12)


def test_full_remat_computes_blocks_once_more() -> None:
    config = load_model("llama3-8b")
    none, full = (count_work(config, Plan(MeshSettings(), 1, 4096, 1, remat)) for remat in ("none", "full"))
    again = 2 * BLOCKS_8B * 4096 + attention_flops(config, 4096, 4096)
    assert full.device_flops - none.device_flops == pytest.approx(again, rel=1e-12)
    assert full.model_flops == none.model_flops


def test_experts_over_shards_are_computed_again_whatever_is_kept() -> None:
    config = load_model("qwen3-30b-a3b")
    here, there = (
        count_work(config, Plan(MeshSettings(**{axis: 8}), 8, 4096, 1, "none")) for axis in ("fsdp", "expert")
    )
    again = 2 * 4096 * 8 * 3 * 2048 * 768 * 48
    assert there.device_flops - here.device_flops == pytest.approx(again, rel=1e-9)


def test_a_window_shortens_what_a_token_sees() -> None:
    config = replace(load_model("llama3-8b"), pattern=(LayerKind(window=2), LayerKind()), num_layers=2)
    # Of four tokens, those with a window see 1, 2, 2, 2, and the others 1, 2, 3, 4.
    assert attention_flops(config, 4, 4) == 4 * 32 * 128 * (7 + 10)


def test_bytes_of_gathers_and_scatters_by_hand() -> None:
    config = load_model("llama3-8b")
    found = {(one.axis, one.kind): one for one in count_work(config, _plan(fsdp=8)).collectives}
    parameters = 8_030_261_248
    # Blocks are gathered twice in bfloat16, embedding, head and last norm once; a device sends 7 of 8 parts.
    outside = 2 * HEAD_8B + 4096
    gathered = (2 * parameters - outside) * 2 * 7 / 8
    assert found["fsdp", "all-gather"].bytes == pytest.approx(gathered, rel=1e-9)
    assert found["fsdp", "reduce-scatter"].bytes == pytest.approx(parameters * 4 * 7 / 8, rel=1e-9)
    assert set(found) == {("fsdp", "all-gather"), ("fsdp", "reduce-scatter")}


def test_copies_of_the_parameters_add_their_gradients() -> None:
    found = count_work(load_model("llama3-8b"), _plan(data=8)).collectives
    assert [(one.axis, one.kind) for one in found] == [("data", "all-reduce")]
    assert found[0].bytes == pytest.approx(2 * 8_030_261_248 * 4 * 7 / 8, rel=1e-9)


def test_accumulation_repeats_what_a_micro_batch_sends() -> None:
    config = load_model("llama3-8b")
    once, thrice = (count_work(config, _plan(micro_batches=times, fsdp=4, tensor=2)) for times in (1, 3))
    assert [one.bytes for one in thrice.collectives] == pytest.approx(
        [3 * one.bytes for one in once.collectives], rel=1e-9
    )


def _plan(micro_batches: int = 1, **mesh: int) -> Plan:
    return Plan(MeshSettings(**mesh), 8, 4096, micro_batches, "full")
