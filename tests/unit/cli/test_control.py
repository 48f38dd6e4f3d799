"""Runs whose completions come from vLLM, up to the point where a server is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.cli.acting import client_settings
from forebay.cli.control import check_servers
from forebay.cli.roles import free_port, generator_addresses
from forebay.cli.runs import own_run, resolve_model
from forebay.cli.train import processes
from forebay.config import load_config
from forebay.errors import ConfigError
from tests.unit.cli.support import forebay

TWO = 'generator.vllm=["http://127.0.0.1:8000/", "http://127.0.0.1:8001"]'
ADDRESSES = ["http://127.0.0.1:8000", "http://127.0.0.1:8001"]


def test_actors_talk_to_the_servers_and_the_generator_process_controls_them(tmp_path: Path) -> None:
    config = load_config(None, [f"run.directory={tmp_path}", "learner.eval_every=5", TWO])
    directory, run = own_run(config)
    with directory:
        specs = {spec.name: spec for spec in processes(run)}
        assert list(specs) == ["learner", "generator", "actor-0", "evaluator"]
        assert specs["generator"].argv[-2:] == ("generate", str(run.layout.path))
        for name in ("actor-0", "evaluator"):
            assert [word for word in specs[name].argv if word.startswith("http")] == ADDRESSES
        assert generator_addresses(run, None) == ADDRESSES
        assert generator_addresses(run, ["http://x"]) == ["http://x"]


def test_the_client_knows_the_padding_of_the_vocabulary(tmp_path: Path) -> None:
    directory, run = own_run(load_config(None, [f"run.directory={tmp_path}"]))
    with directory:
        settings = client_settings(run)
    assert (settings.vocabulary, settings.padded_vocabulary) == (
        run.model.num_real_tokens,
        run.model.vocab_size,
    )


def test_generate_has_nothing_to_listen_on(tmp_path: Path) -> None:
    directory, run = own_run(load_config(None, [f"run.directory={tmp_path}", TWO]))
    directory.close()
    code, text = forebay("generate", str(run.layout.path), "--port", "8100")
    assert (code, "listens nowhere" in text) == (2, True)


def test_a_server_that_is_not_there_is_one_line_that_says_how_to_start_it(tmp_path: Path) -> None:
    config = tmp_path / "run.toml"
    config.write_text(
        f'[run]\ndirectory = "{tmp_path}"\n[generator]\nvllm = ["http://127.0.0.1:{free_port()}"]\n'
    )
    code, text = forebay("train", str(config), "--dry-run")
    assert code == 2
    assert "no vLLM server at http://127.0.0.1:" in text
    assert "VLLM_SERVER_DEV_MODE=1 vllm serve" in text
    # The run directory, which the server starts from, can be made without it.
    assert forebay("train", str(config), "--prepare").code == 0
    assert (tmp_path / "run" / "model" / "config.json").is_file()


def test_a_temperature_that_vllm_refuses_is_refused_first() -> None:
    config = load_config(None, ["actors.temperature=2.5", TWO])
    with pytest.raises(ConfigError, match=r"got actors.temperature=2\.5, limit <= 2"):
        check_servers(config, resolve_model(config)[0])
