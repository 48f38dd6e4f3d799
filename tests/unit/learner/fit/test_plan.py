from __future__ import annotations

import pytest

from forebay.errors import ConfigError
from forebay.learner.fit.plan import Plan, check_plan, mesh_name, parse_mesh, refusal
from forebay.learner.fit.shapes import load_model
from forebay.models.settings import MeshSettings


def test_a_mesh_is_read_back_from_its_name() -> None:
    mesh = parse_mesh("fsdp=16, tensor=4", 64)
    assert mesh == MeshSettings(fsdp=16, tensor=4)
    assert parse_mesh(mesh_name(mesh), 64) == mesh
    assert mesh_name(MeshSettings()) == "data=1"


@pytest.mark.parametrize("text", ["fsdp", "fsdp=0", "rows=4", "fsdp=4,fsdp=4", "", "fsdp=4;tensor=4"])
def test_what_is_no_mesh_is_refused_with_the_names_of_axes(text: str) -> None:
    with pytest.raises(ConfigError, match="limit data, fsdp, context, tensor, expert"):
        parse_mesh(text, 16)


def test_a_mesh_that_does_not_multiply_to_the_devices_says_both_numbers() -> None:
    with pytest.raises(ConfigError, match=r"fsdp=8,tensor=4 .*got 32, limit 64"):
        parse_mesh("fsdp=8,tensor=4", 64)


def test_tokens_of_devices_follow_from_the_mesh() -> None:
    plan = Plan(MeshSettings(data=2, fsdp=4, context=2, tensor=4), 16, 1024, 3, "full")
    assert plan.tokens == 3 * 16 * 1024
    assert plan.shard_tokens == 16 * 1024 // (2 * 4 * 2)
    assert plan.own_tokens == plan.shard_tokens // 4


def test_experts_are_split_evenly() -> None:
    config = load_model("qwen3-30b-a3b")
    assert refusal(config, MeshSettings(expert=64)) is None
    assert refusal(config, MeshSettings(expert=48)) == "experts 128 is not a multiple of expert=48"


@pytest.mark.parametrize(
    ("mesh", "why"),
    [
        (MeshSettings(tensor=16), "kv_heads 8 is not a multiple of tensor=16"),
        (MeshSettings(fsdp=3), "embed 4096 is not a multiple of fsdp=3"),
        (MeshSettings(fsdp=16, tensor=8), None),
    ],
)
def test_a_mesh_that_cannot_split_the_model_is_named(mesh: MeshSettings, why: str | None) -> None:
    assert refusal(load_model("llama3-8b"), mesh) == why


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        (
            Plan(MeshSettings(fsdp=4), 6, 128, 1, "full"),
            "limit a multiple of data x fsdp x expert = 4). Change --rows",
        ),
        (Plan(MeshSettings(context=4), 1, 100, 1, "full"), "limit a multiple of 8"),
        (Plan(MeshSettings(), 1, 1 << 18, 1, "full"), "limit 131072"),
    ],
)
def test_a_plan_that_cannot_be_compiled_says_what_divides(plan: Plan, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_plan(load_model("llama3-8b"), plan)
    assert said in str(caught.value)
