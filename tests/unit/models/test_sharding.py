from __future__ import annotations

import dataclasses

import jax
import pytest
from jax.sharding import PartitionSpec as P

from forebay.errors import ConfigError
from forebay.models.settings import MeshSettings
from forebay.models.sharding import check_divisible, make_mesh, parameter_specs, row_spec
from tests.unit.models import tiny


def test_mesh_axes() -> None:
    mesh = make_mesh(MeshSettings(data=2, fsdp=2, tensor=2))
    assert dict(mesh.shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert MeshSettings(data=2, fsdp=3).row_multiple == 6


def test_too_few_devices() -> None:
    with pytest.raises(ConfigError, match=r"data 3 x fsdp 1 x tensor 3 .* \(got 8, limit 9\)"):
        make_mesh(MeshSettings(data=3, tensor=3), jax.devices()[:8])


def test_the_rule() -> None:
    specs = parameter_specs(dataclasses.replace(tiny.CONFIG, tie_word_embeddings=False))
    assert specs["embedding"] == specs["lm_head"] == P("tensor", "fsdp")
    assert specs["final_norm"] == P("fsdp")
    assert specs["layers"]["attention_norm"] == P(None, "fsdp")
    assert specs["layers"]["k_proj"] == P(None, "fsdp", "tensor", None)
    assert specs["layers"]["o_proj"] == P(None, "tensor", None, "fsdp")
    assert specs["layers"]["down_proj"] == P(None, "tensor", "fsdp")
    assert row_spec() == P(("data", "fsdp"), None)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (MeshSettings(tensor=4), r"kv_heads 2 is not a multiple of tensor \(got 4\).*mesh.tensor"),
        (MeshSettings(fsdp=3), r"embed 16 is not a multiple of fsdp \(got 3\)"),
    ],
)
def test_a_model_that_cannot_be_split_is_refused(settings: MeshSettings, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_divisible(tiny.CONFIG, make_mesh(settings))
