from __future__ import annotations

import importlib.util
import json

import pytest

from tests.unit.cli.support import forebay

KEYS = {
    "topology",
    "mesh",
    "params",
    "tokens_per_step",
    "bytes_per_chip",
    "limit_bytes",
    "fits",
    "step_s_roofline",
    "collectives",
}


def test_one_object_has_what_scripts_rely_on() -> None:
    code, text = forebay(
        *("fit", "llama3-70b", "--topology", "v5p:4x4x4", "--mesh", "fsdp=16,tensor=4", "--tokens", "262144"),
        *("--remat", "full", "--analytic", "--price-per-chip-hour", "4", "--slots", "8", "--json"),
    )
    assert code == 0
    found = json.loads(text)
    assert found.keys() >= KEYS
    assert found["source"] == "analytic"
    assert found["params"] == found["active_params"] == 70_553_706_496
    assert found["tokens_per_step"] == 262_144 == found["rows"] * found["length"] * found["micro_batches"]
    assert found["mesh"] == {"data": 1, "fsdp": 16, "context": 1, "tensor": 4, "expert": 1}
    sizes = found["bytes_per_chip"]
    assert sizes.keys() >= {"parameters", "optimizer", "activations", "temporary", "peak"}
    assert sizes["peak"] + sizes["headroom"] == found["limit_bytes"]
    assert found["fits"] and sizes["headroom"] >= 0.1 * found["limit_bytes"]
    assert found["tokens_per_s"] == pytest.approx(262_144 / found["step_s_roofline"])
    assert found["cost_per_step"] == pytest.approx(4 * 64 * found["step_s_roofline"] / 3600)
    assert 0 < found["flops_of_peak"] < 0.8, "recomputation alone takes a quarter"
    assert found["generator"]["weight_bytes"] == 2 * 70_553_706_496
    assert found["generator"]["fits"] is False
    assert found["collectives"][0].keys() == {"axis", "kind", "count", "bytes"}


def test_two_devices_of_a_chip_count_together() -> None:
    _, text = forebay("fit", "llama3-8b", "--topology", "tpu7x:2x2x1", "--analytic", "--json")
    found = json.loads(text)
    assert (found["chips"], found["devices"]) == (4, 8)
    assert found["limit_bytes"] == 2 * int(94.74 * 2**30)
    assert sum(found["mesh"].values()) - 5 + 1 <= 8


def test_people_get_a_table() -> None:
    code, text = forebay("fit", "qwen3-8b", "--topology", "gpu:h100x8", "--analytic")
    assert code == 0
    for piece in ("fits, by arithmetic only", "8.19 B parameters", "optimizer", "roofline", "tokens/s"):
        assert piece in text


def test_what_does_not_fit_ends_with_the_arithmetic() -> None:
    code, text = forebay("fit", "llama3-70b", "--topology", "v5e:4x4", "--analytic")
    assert code == 2
    assert "llama3-70b does not fit on v5e:4x4" in text
    assert "of 15.75 GiB per device: parameters" in text and "optimizer" in text
    assert "limit 14.18 GiB per chip" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("llama3-8b", "--topology", "v9:4x4"), "no such topology: v9:4x4"),
        (("llama-8b", "--topology", "v5e:4x4"), "Did you mean llama3-8b?"),
        (("llama3-8b", "--topology", "v5e:4x4", "--mesh", "fsdp=4", "--analytic"), "got 4, limit 16"),
        (("llama3-8b", "--topology", "v5e:4x4", "--remat", "some", "--analytic"), "elementwise, dots, full"),
        (("llama3-8b", "--topology", "v5e:4x4", "--tokens", "5000", "--analytic"), "--tokens 4096"),
        (("llama3-8b", "--topology", "v5e:4x4", "--length", "200000", "--analytic"), "limit 131072"),
        (("llama3-8b", "--topology", "v5e:4x4", "--mesh", "fsdp=16", "--rows", "8", "--analytic"), "= 16"),
        (("llama3-8b", "--topology", "v5e:4x4", "--mesh", "tensor=16", "--analytic"), "kv_heads 8"),
        (("llama3-8b", "--topology", "gpu:h100x8"), "Pass --analytic"),
    ],
)
def test_what_cannot_be_answered_is_one_line(arguments: tuple[str, ...], said: str) -> None:
    code, text = forebay("fit", *arguments)
    assert code == 2
    assert said in text


@pytest.mark.skipif(importlib.util.find_spec("libtpu") is not None, reason="libtpu is installed")
def test_without_the_compiler_it_is_said_how_to_get_it() -> None:
    code, text = forebay("fit", "llama3-8b", "--topology", "v5e:4x4")
    assert code == 2
    assert "pip install libtpu" in text and "--analytic" in text
