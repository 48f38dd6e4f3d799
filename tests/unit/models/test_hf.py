from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from forebay.errors import ModelError
from forebay.models.config import ModelConfig
from forebay.models.hf import from_hf_tensors, hf_shapes, text_names, to_hf_tensors, without_padding
from tests.unit.models import tiny

UNTIED = dataclasses.replace(tiny.CONFIG, tie_word_embeddings=False)


def tensors() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(size=shape).astype(np.float32) for name, shape in hf_shapes(UNTIED).items()
    }


def test_round_trip_is_exact() -> None:
    original = tensors()
    back = to_hf_tensors(from_hf_tensors(original, UNTIED), UNTIED)
    assert list(back) == list(original)
    assert all((back[name] == original[name]).all() for name in original)
    assert all(tensor.flags.c_contiguous for tensor in back.values())


def test_linear_maps_are_transposed_and_split_into_heads() -> None:
    original = tensors()
    layers = from_hf_tensors(original, UNTIED)["layers"]
    q_proj = original["model.layers.1.self_attn.q_proj.weight"]
    o_proj = original["model.layers.1.self_attn.o_proj.weight"]
    # head 2, channel 3 is output row 2 * 4 + 3 of q_proj and input column 11 of o_proj
    np.testing.assert_array_equal(layers["q_proj"][1, :, 2, 3], q_proj[11])
    np.testing.assert_array_equal(layers["o_proj"][1, 2, 3], o_proj[:, 11])


@pytest.mark.parametrize("config", [UNTIED, tiny.CONFIG], ids=["untied", "tied"])
def test_without_padding_a_model_is_of_its_tokens_alone(config: ModelConfig) -> None:
    original = tensors()
    if config.tie_word_embeddings:
        del original["lm_head.weight"]
    cut, smaller = without_padding(original, config)
    assert (smaller.vocab_size, smaller.num_real_tokens) == (37, 37)
    assert "num_real_tokens" not in smaller.to_hf()
    assert {name: tensor.shape for name, tensor in cut.items()} == hf_shapes(smaller)
    for name, tensor in cut.items():
        np.testing.assert_array_equal(tensor, original[name][: len(tensor)])


def test_a_tied_model_leaves_out_a_copy_of_its_head() -> None:
    copied = tensors() | {"lm_head.weight": tensors()["model.embed_tokens.weight"]}
    params = from_hf_tensors(copied, tiny.CONFIG)
    assert "lm_head" not in params
    assert "lm_head.weight" not in to_hf_tensors(params, tiny.CONFIG)


def test_c65_a_tied_model_with_another_head_is_refused() -> None:
    changed = tensors() | {"lm_head.weight": tensors()["model.embed_tokens.weight"]}
    changed["lm_head.weight"][7] += 0.5
    with pytest.raises(ModelError, match=r"tie_word_embeddings is true, but lm_head\.weight holds other num"):
        from_hf_tensors(changed, tiny.CONFIG)
    changed["lm_head.weight"] = changed["lm_head.weight"][:37]
    with pytest.raises(ModelError, match=r"lm_head\.weight has shape \[37, 16\] instead of \[40, 16\]"):
        from_hf_tensors(changed, tiny.CONFIG)


def test_c80_the_text_of_a_model_of_text_and_images_is_renamed_and_the_rest_left_out() -> None:
    old = ["language_model.model.norm.weight", "language_model.lm_head.weight", "vision_tower.head.probe"]
    new = ["model.language_model.norm.weight", "lm_head.weight", "model.vision_tower.head.probe"]
    wanted = ["model.norm.weight", "lm_head.weight"]
    assert list(text_names(old).values()) == list(text_names(new).values()) == wanted
    # a text model has no such tensor: it stays, to be found unexpected
    assert text_names(["model.norm.weight", "vision_tower.head.probe"])["vision_tower.head.probe"]
    assert text_names(["language_model.norm", "audio_tower.x"])["audio_tower.x"] == "audio_tower.x"


def test_every_misfit_is_named() -> None:
    wrong = tensors()
    del wrong["model.norm.weight"]
    wrong["model.layers.0.self_attn.q_proj.bias"] = np.zeros(16, np.float32)
    wrong["model.layers.1.mlp.up_proj.weight"] = np.zeros((16, 32), np.float32)
    with pytest.raises(ModelError) as caught:
        from_hf_tensors(wrong, UNTIED)
    message = str(caught.value)
    assert "missing model.norm.weight" in message
    assert "unexpected model.layers.0.self_attn.q_proj.bias" in message
    assert "model.layers.1.mlp.up_proj.weight has shape [16, 32] instead of [32, 16]" in message


def test_dtype_is_cast() -> None:
    halves = {name: tensor.astype(np.float16) for name, tensor in tensors().items()}
    assert from_hf_tensors(halves, UNTIED)["layers"]["up_proj"].dtype == np.float32
