from __future__ import annotations

import pytest

from forebay.errors import ConfigError
from forebay.models.platforms import automatic_attention, check_attention
from forebay.models.settings import ComputeSettings

# Platform and compute capability of a device, and the kinds of attention that it runs.
DEVICES = {
    ("cpu", None): {"auto", "dense", "blockwise"},
    ("tpu", None): {"auto", "dense", "blockwise", "splash"},
    ("gpu", "9.0"): {"auto", "dense", "blockwise", "fused"},
    ("gpu", "8.0"): {"auto", "dense", "blockwise", "fused"},
    ("gpu", "10.3"): {"auto", "dense", "blockwise", "fused"},
    ("gpu", "7.5"): {"auto", "dense", "blockwise"},
    ("gpu", "gfx942"): {"auto", "dense", "blockwise", "fused"},
    ("metal", None): {"auto", "dense", "blockwise"},
}
KINDS = ("auto", "dense", "blockwise", "splash", "fused")


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_kind_is_refused_where_its_kernel_is_not_built(device: tuple[str, str | None]) -> None:
    for kind in KINDS:
        ComputeSettings.model_validate({"attention": kind})
        if kind in DEVICES[device]:
            check_attention(kind, *device)
            continue
        with pytest.raises(ConfigError) as caught:
            check_attention(kind, *device)
        error = caught.value
        assert kind in error.what and str(error.got).startswith(device[0])
        assert str(error.limit)[:3] == {"splash": "tpu", "fused": "gpu"}[kind]
        assert f"which is {automatic_attention(*device)} here" in str(error.remedy)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_what_is_chosen_runs_and_is_a_kernel_where_there_is_one(device: tuple[str, str | None]) -> None:
    chosen = automatic_attention(*device)
    assert chosen in DEVICES[device]
    assert chosen != "blockwise" or not DEVICES[device] & {"splash", "fused"}


def test_an_older_gpu_is_told_its_capability_and_the_one_that_is_needed() -> None:
    with pytest.raises(ConfigError, match=r"got gpu of compute capability 7\.5, limit gpu .* 8\.0 or more"):
        check_attention("fused", "gpu", "7.5")
