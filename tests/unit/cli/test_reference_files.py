from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
import pytest

from forebay.cli.reference_files import check_reference_files
from forebay.config import load_config
from forebay.errors import ConfigError, ModelError
from forebay.models.checkpoint_io import save_model
from forebay.models.hf import to_hf_tensors
from tests.unit.models import tiny


def config(source: Path | str, kl_coef: float = 0.1):
    return load_config(None, [f"objective.kl_coef={kl_coef}", f"reference.source={source}"])


def test_a_model_of_another_shape_is_no_reference(tmp_path: Path) -> None:
    save_model(tmp_path / "model", tiny.CONFIG, to_hf_tensors(jax.device_get(tiny.params()), tiny.CONFIG))
    check_reference_files(config(tmp_path / "model"), tiny.CONFIG)
    longer = dataclasses.replace(tiny.CONFIG, max_position=128, eos_ids=())
    check_reference_files(config(tmp_path / "model"), longer)
    wider = dataclasses.replace(tiny.CONFIG, rope_theta=500.0)
    with pytest.raises(
        ModelError, match=r"another kind of model .*got rope_theta 10000\.0, limit rope_theta 500"
    ):
        check_reference_files(config(tmp_path / "model"), wider)
    with pytest.raises(ModelError, match=r"Check reference\.source"):
        check_reference_files(config(tmp_path / "nothing"), tiny.CONFIG)
    check_reference_files(config(tmp_path / "nothing", kl_coef=0.0), tiny.CONFIG)  # nobody looks at it


def test_a_reference_that_never_differs_is_refused_with_the_configuration() -> None:
    overrides = ["objective.kl_coef=0.1", "reference.update_every=1"]
    with pytest.raises(ConfigError, match="the penalty 0"):
        load_config(None, overrides)
    load_config(None, [*overrides, "batching.epochs=2"])
    load_config(None, [*overrides, "objective.kl_coef=0"])
