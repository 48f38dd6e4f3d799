from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

pytest.importorskip("gguf")

from forebay.errors import ModelError
from forebay.models.checkpoint_io import check_model, load_model, read_tensors
from forebay.models.config import load_config
from forebay.models.experts import Experts
from forebay.models.gguf import gguf_config
from forebay.models.gguf_file import read_gguf
from forebay.models.gguf_tensors import read_hf_tensors
from forebay.models.layer_kinds import LayerKind
from tests.unit.models import gguf_files


@pytest.mark.parametrize("model", ["tiny-vocab40", "tiny-untied"])
def test_a_gguf_file_holds_the_model_it_was_made_from(tmp_path: Path, model: str) -> None:
    directory = gguf_files.GOLDEN / model
    original = load_config(directory)
    path = gguf_files.write(
        tmp_path / "m.gguf", gguf_files.tensors_of(model), llama__vocab_size=original.vocab_size
    )
    config, params = load_model(path, num_real_tokens=original.num_real_tokens)
    assert config == original
    expected = load_model(directory)[1]
    for name, array in expected["layers"].items():
        np.testing.assert_array_equal(params["layers"][name], array, err_msg=name)
    np.testing.assert_array_equal(params["embedding"], expected["embedding"])
    assert ("lm_head" in params) == (model == "tiny-untied")
    tensors = read_hf_tensors(read_gguf(path), config)
    assert {name: tensor.tolist() for name, tensor in tensors.items()} == {
        name: tensor.tolist() for name, tensor in read_tensors(directory).items()
    }


# What a GGUF file of a family does not say: windows of Qwen and Mixtral, weights of experts that do not add
# up to 1, and how a Gemma of no published size scores.
EXPERTS = Experts(number=8, per_token=3, width=12, renormalize=True, balance_coefficient=0.001)
LOST: dict[str, dict[str, Any]] = {
    "mixtral": {"pattern": (LayerKind(),)},
    "qwen3": {"pattern": (LayerKind(),)},
    "qwen3_moe": {"experts": EXPERTS},
    "gemma2": {"query_pre_attn_scalar": 8},
    "gemma3_text": {"query_pre_attn_scalar": 8},
}
FAMILIES = ("llama", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma2", "gemma3_text")


@pytest.mark.parametrize("family", FAMILIES)
def test_a_gguf_file_of_every_family_holds_the_model_it_was_made_from(tmp_path: Path, family: str) -> None:
    path = gguf_files.write_family(tmp_path / "m.gguf", family)
    config, params = load_model(path)
    original, expected = load_model(gguf_files.GOLDEN / family)
    assert config == dataclasses.replace(original, **LOST.get(family, {}))
    check_model(path, config)
    tolerance = 1e-7 if config.unit_offset_norms else 0.0  # 1 was added in float32, and taken off again
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0, atol=tolerance), params, expected)


def test_the_largest_gemma_scores_by_its_width(tmp_path: Path) -> None:
    file = read_gguf(gguf_files.write_family(tmp_path / "m.gguf", "gemma2"))
    tensors = file.tensors | {
        f"blk.{layer}.x.weight": file.tensors["output_norm.weight"] for layer in range(46)
    }
    larger = dataclasses.replace(file, metadata=file.metadata | {"gemma2.block_count": 46}, tensors=tensors)
    assert gguf_config(larger).query_pre_attn_scalar == 16 // 4


def test_what_llama_cpp_assumes_is_filled_in(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors_of("tiny-vocab40"),
        llama__attention__head_count_kv=None,
        llama__rope__freq_base=None,
        llama__rope__dimension_count=None,
        llama__vocab_size=None,
    )
    config = gguf_config(read_gguf(path))
    assert (config.num_kv_heads, config.rope_theta, config.head_size) == (4, 10_000.0, 4)
    assert (config.vocab_size, config.num_real_tokens, config.rms_norm_eps) == (40, 40, 1e-5)


def test_linear_scaling_is_read(tmp_path: Path) -> None:
    path = gguf_files.write(
        tmp_path / "m.gguf",
        gguf_files.tensors_of("tiny-vocab40"),
        llama__rope__scaling__type="linear",
        llama__rope__scaling__factor=4.0,
    )
    scaling = gguf_config(read_gguf(path)).rope_scaling
    assert scaling is not None
    assert (scaling.kind, scaling.factor) == ("linear", 4.0)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"general__architecture": "gpt2"},
            "unsupported general.architecture in .*got 'gpt2', limit 'llama'",
        ),
        ({"general__architecture": "phi3"}, "got 'phi3'"),
        ({"general__architecture": None}, "got None"),
        ({"llama__expert_count": 8}, "has no llama.expert_used_count"),
        ({"llama__expert_shared_count": 1}, "unsupported llama.expert_shared_count in .*got 1"),
        ({"llama__attention__sliding_window": 4096}, "unsupported llama.attention.sliding_window"),
        (
            {"llama__attention__head_count": [4, 2]},
            r"llama.attention.head_count .*got \[4, 2\], limit one integer",
        ),
        ({"llama__block_count": None}, "has no llama.block_count"),
        ({"llama__block_count": 2**31}, "unsupported llama.block_count .*limit 20 tensors"),
        ({"llama__rope__dimension_count": 2}, "unsupported llama.rope.dimension_count .*got 2, limit 4"),
        ({"llama__rope__scaling__type": "longrope"}, "unsupported llama.rope.scaling.type .*got 'longrope'"),
        ({"llama__rope__scaling__type": "yarn"}, "has no llama.rope.scaling.factor"),
        ({"llama__rope__scaling__type": "linear"}, "has no llama.rope.scaling.factor"),
        ({"llama__attention__layer_norm_rms_epsilon": "x"}, "got 'x', limit a number"),
        ({"llama__vocab_size": 41}, "unsupported llama.vocab_size .*got 41, limit 40"),
        ({"split__count": 2}, "one of several files .*llama-gguf-split --merge"),
    ],
)
def test_what_is_not_computed_is_refused_by_its_key(
    tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    path = gguf_files.write(tmp_path / "m.gguf", gguf_files.tensors_of("tiny-vocab40"), **changes)
    with pytest.raises(ModelError, match=named):
        gguf_config(read_gguf(path))


@pytest.mark.parametrize(
    ("tensors", "named"),
    [
        ({"blk.1.ffn_up.weight": None}, r"missing model\.layers\.1\.mlp\.up_proj\.weight"),
        ({"blk.0.attn_q.bias": np.zeros(16)}, r"unexpected model\.layers\.0\.self_attn\.q_proj\.bias"),
        ({"blk.0.strange.weight": np.zeros(16)}, r"unexpected blk\.0\.strange\.weight"),
        ({"output_norm.weight": np.zeros(8)}, r"model\.norm\.weight has shape \[8\] instead of \[16\]"),
        ({"blk.0.attn_k.weight": np.zeros((7, 16))}, r"shape \[7, 16\] instead of \[8, 16\]"),
        ({"token_embd.weight": None}, r"has no tensor token_embd\.weight"),
        ({"rope_freqs.weight": np.array([2.0, 8.0])}, r"unsupported tensor rope_freqs\.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, tensors: dict[str, Any], named: str) -> None:
    changed = gguf_files.tensors_of("tiny-vocab40") | tensors
    path = gguf_files.write(
        tmp_path / "m.gguf", {name: tensor for name, tensor in changed.items() if tensor is not None}
    )
    with pytest.raises(ModelError, match=named):
        check_model(path, gguf_config(read_gguf(path)))
    with pytest.raises(ModelError, match=named):
        load_model(path)
