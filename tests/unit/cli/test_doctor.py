from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
from typer.testing import CliRunner

import forebay as package
from forebay.cli import app
from forebay.cli.examining import probes_for, subject_of
from forebay.cli.roles import free_port
from forebay.cli.runs import own_run
from forebay.clock import SystemClock
from forebay.config import load_config
from forebay.errors import ConfigError, PeerFailedError
from tests.unit.cli.support import forebay


def names(target: Path | None, directory: Path | None = None) -> list[str]:
    return [probe.what for probe in probes_for(subject_of(target, directory), SystemClock())]


def test_the_report_is_a_line_for_each_finding_and_leaves_nothing(tmp_path: Path) -> None:
    code, text = forebay("doctor", "--directory", str(tmp_path))
    assert code == 0, text
    levels = {line.split()[1]: line.split()[0] for line in text.splitlines() if not line.startswith(" ")}
    assert levels["devices"] == levels["store"] == levels["loopback"] == "ok"
    assert list(tmp_path.iterdir()) == []


def test_two_versions_of_the_package_end_with_4(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "forebay").mkdir()
    (tmp_path / "forebay" / "__init__.py").write_text('__version__ = "0.0.7"\n')
    monkeypatch.chdir(tmp_path)
    code, text = forebay("doctor")
    assert (code, text) == (4, "forebay will not run well here: forebay")
    config = tmp_path / "run.toml"
    config.write_text("[generator]\nport = 0\n")
    code, text = forebay("train", str(config))
    assert code == 2
    assert text.startswith(f"two versions of the package: {package.__version__} in ")
    assert f"0.0.7 in {tmp_path / 'forebay'}" in text and "pip uninstall forebay" in text


def test_a_configuration_and_a_run_are_looked_at_for_what_they_need(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f"[run]\ndirectory = '{tmp_path}'\nname = 'x'\n[environment.e]\nentrypoint = 'no:Thing'\n"
    )
    assert {"environments", "model", "room", "port"} <= set(names(config))
    assert {"environments", "model", "room"}.isdisjoint(names(None))
    directory, _ = own_run(load_config(None, [f"run.directory={tmp_path}", "run.name=x"]))
    with directory:
        assert "port" not in names(tmp_path / "x")  # the run's own generator holds it
    assert "port" in names(tmp_path / "x")
    result = CliRunner().invoke(app, ["doctor", str(config), "--json"])
    assert isinstance(result.exception, PeerFailedError)
    report = json.loads(result.stdout)
    assert report["ok"] is False
    assert [finding["what"] for finding in report["findings"] if finding["level"] == "bad"] == [
        "environments"
    ]
    assert all(finding["remedy"] for finding in report["findings"] if finding["level"] in ("bad", "warn"))


def test_where_vllm_generates_its_servers_are_looked_at_and_no_port_of_ours(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        config.write_text(f"[run]\ndirectory = '{tmp_path}'\n[generator]\nport = {port}\n")
        assert {"port"} == {"port", "vllm"} & set(names(config))
        with config.open("a") as file:
            file.write(f'vllm = ["http://127.0.0.1:{free_port()}"]\n')
        probes = {probe.what: probe for probe in probes_for(subject_of(config, None), SystemClock())}
        assert {"vllm"} == {"port", "vllm"} & set(probes)
        with pytest.raises(ConfigError, match=r"no vLLM server at http://127\.0\.0\.1:.*vllm serve"):
            probes["vllm"].look()


def test_what_is_neither_a_run_nor_a_configuration(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a run directory"):
        subject_of(tmp_path, None)
    with pytest.raises(ConfigError, match="no configuration file"):
        subject_of(tmp_path / "nowhere.toml", None)
