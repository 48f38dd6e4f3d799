from __future__ import annotations

from pathlib import Path

import pytest

from forebay.launch.probes import devices


@pytest.fixture
def jax_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory in front of the path, for a stand-in of jax."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path / "jax.py"


def test_devices_compute_and_are_enough() -> None:
    [finding] = devices.look_at_devices(1, limit_s=60.0)
    assert finding.level == "ok" and "(cpu)" in finding.seen


def test_a_mesh_needs_as_many_devices() -> None:
    seen = devices.Seen(version="1", backend="gpu", count=4, kind="H200", total=512.0)
    assert devices.judge(seen, 4).level == "ok"
    finding = devices.judge(seen, 8)
    assert finding.level == "bad" and "but the mesh has 8" in finding.seen and "mesh.fsdp" in finding.remedy
    wrong = devices.Seen(version="1", backend="gpu", count=1, kind="H200", total=511.0)
    assert devices.judge(wrong, 1).level == "bad"


@pytest.mark.parametrize(
    ("attention", "backend", "capability", "refused"),
    [
        ("auto", "cpu", None, False),
        ("splash", "tpu", None, False),
        ("splash", "cpu", None, True),
        ("fused", "gpu", "9.0", False),
        ("fused", "gpu", "7.5", True),
    ],
)
def test_attention_that_the_devices_cannot_run_is_found(
    attention: str, backend: str, capability: str | None, refused: bool
) -> None:
    seen = devices.Seen(version="1", backend=backend, count=1, kind="X", total=512.0, capability=capability)
    finding = devices.judge(seen, 1, attention)
    assert finding.level == ("bad" if refused else "ok")
    assert ("blockwise here" in finding.remedy) == refused


def test_a_driver_that_fails_is_named_with_its_stage(jax_that: Path) -> None:
    jax_that.write_text("raise RuntimeError('no driver for this kernel')\n")
    [finding] = devices.look_at_devices()
    assert finding.level == "bad"
    assert finding.seen == "jax failed while importing jax: RuntimeError: no driver for this kernel"


def test_a_device_that_hangs_is_named_with_its_stage(jax_that: Path) -> None:
    jax_that.with_name("jax").mkdir()
    package = jax_that.with_name("jax") / "__init__.py"
    package.write_text("import time\ndef devices():\n    time.sleep(60)\n")
    package.with_name("numpy.py").write_text("")
    [finding] = devices.look_at_devices(limit_s=2.0)
    assert finding.level == "bad"
    assert finding.seen == "jax was still waiting for its devices after 2 s"
    assert "JAX_PLATFORMS=cpu" in finding.remedy
