from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from forebay.cli.reference_model import check_reference, make_reference
from forebay.errors import ConfigError
from forebay.models.params import Params
from tests.unit.models import tiny


def host(seed: int = 0) -> Params:
    return jax.device_get(tiny.params(seed=seed))


def test_another_reference_than_the_run_was_started_with_is_refused(tmp_path: Path) -> None:
    check_reference(tmp_path, "initial", host())
    check_reference(tmp_path, "initial", host())
    for source, params in (("initial", host(seed=1)), ("elsewhere", host())):
        with pytest.raises(ConfigError, match=r"is not the one that .* was started with \(got .*, hash"):
            check_reference(tmp_path, source, params)
    changed = host()
    changed["embedding"] = np.array(changed["embedding"])
    changed["embedding"][3, 3] += 1e-6
    with pytest.raises(ConfigError, match=r"another run\.name"):
        check_reference(tmp_path, "initial", changed)


def test_a_damaged_record_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "reference.json").write_text("{")
    with pytest.raises(ConfigError, match=r"reference\.json is damaged.*Remove it"):
        check_reference(tmp_path, "initial", host())


def test_a_run_without_a_penalty_has_no_reference() -> None:
    class Parts:
        reference = None

    assert make_reference(None, Parts, {}, None) is None
