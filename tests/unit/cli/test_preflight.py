from __future__ import annotations

import functools
import re
import shutil
import socket
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay.chat import small_chat
from forebay.cli import preflight
from forebay.cli.preflight import (
    check_address,
    check_devices,
    check_disk,
    check_token,
    held_out_tasks,
    require_learner_packages,
)
from forebay.cli.runs import resolve_model
from forebay.config import load_config
from forebay.errors import ConfigError
from forebay.launch.probes.devices import ask_devices


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine may be too busy for JAX to come up in the time that a user would wait for an answer."""
    monkeypatch.setattr(preflight, "ask_devices", functools.partial(ask_devices, 300.0))


def test_missing_packages_are_one_line_with_the_extra() -> None:
    require_learner_packages()
    with pytest.raises(ConfigError, match=r"not installed: no_such_jax\. .*forebay\[learner\]"):
        require_learner_packages(["json", "no_such_jax"])


def test_the_packages_looked_for_are_those_of_the_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    extra = [re.split("[<>=]", item)[0] for item in project["optional-dependencies"]["learner"]]
    assert sorted(extra) == sorted(preflight._LEARNER_MODULES)


def test_a_disk_that_is_too_small_is_refused_with_the_arithmetic(tmp_path: Path) -> None:
    path = tmp_path / "runs" / "x"
    config = load_config(None)
    check_disk(config, path, resolve_model(config)[0])
    huge = resolve_model(load_config(None, ["model.num_layers=1000000000"]))[0]
    state, weights = 12 * huge.num_parameters, 4 * huge.num_parameters
    with pytest.raises(ConfigError) as caught:
        check_disk(config, path, huge)
    assert f"4 checkpoints x {state} + 4 versions x {weights} + 67108864" in str(caught.value)
    assert f"= {4 * state + 4 * weights + 67108864} bytes" in str(caught.value)
    assert "learner.keep_checkpoints" in str(caught.value)


@pytest.mark.parametrize("same_disk", [True, False])
def test_checkpoints_elsewhere_need_room_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, same_disk: bool
) -> None:
    path, elsewhere = tmp_path / "x", tmp_path / "elsewhere"
    config = load_config(None, [f"learner.checkpoint_path={elsewhere}"])
    model = resolve_model(config)[0]
    state, rest = 4 * 12 * model.num_parameters, 4 * 4 * model.num_parameters + 67108864

    def exists(path: Path) -> Path:
        return Path("/proc") if path == elsewhere and not same_disk else tmp_path

    def free(path: Path) -> SimpleNamespace:
        return SimpleNamespace(free=room if path == exists(elsewhere) else rest)

    monkeypatch.setattr(preflight, "existing", exists)
    monkeypatch.setattr(shutil, "disk_usage", free)
    room = state + (rest if same_disk else 0)
    check_disk(config, path, model)
    room -= 1
    with pytest.raises(ConfigError) as caught:
        check_disk(config, path, model)
    assert f"the disk of {elsewhere}" in str(caught.value)
    assert f"= {room + 1} bytes" in str(caught.value)
    assert "learner.checkpoint_path" in str(caught.value)


def test_a_bucket_is_not_asked_for_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load_config(None, ["learner.checkpoint_path=s3://bucket/runs"])
    model = resolve_model(config)[0]
    rest = 4 * 4 * model.num_parameters + 67108864
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=rest))
    check_disk(config, tmp_path / "x", model)


def test_a_token_and_a_free_port_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ConfigError, match=r"generator\.port=0"):
            check_address(load_config(None, [f"generator.port={port}"]))
    check_address(load_config(None, [f"generator.port={port}"]))
    config = load_config(None, ["generator.token_env=FOREBAY_TEST_TOKEN", "generator.port=0"])
    with pytest.raises(ConfigError, match="FOREBAY_TEST_TOKEN holds no token"):
        check_token(config)
    monkeypatch.setenv("FOREBAY_TEST_TOKEN", "secret")
    check_token(config)


def test_held_out_tasks_take_turns_and_are_the_same_every_time() -> None:
    overrides = [f"environment.{name}.entrypoint=calculator" for name in "ab"]
    config = load_config(None, [*overrides, "environment.a.num_tasks=40"])
    tasks = held_out_tasks(config, 6)
    assert [task.environment for task in tasks] == ["a", "b", "a", "b", "b", "b"]
    assert sum(task.environment == "a" for task in held_out_tasks(config, 10_000)) == 2
    assert held_out_tasks(config, 6) == tasks
    with pytest.raises(ConfigError, match=r"environment\.NAME\.holdout_fraction"):
        held_out_tasks(load_config(None, ["environment.calculator.holdout_fraction=0"]), 1)


def test_a_new_model_gets_a_padded_vocabulary_and_the_tokenizer_s_stop_tokens() -> None:
    model, chat = resolve_model(load_config(None, ["model.vocab_multiple=48"]))
    assert (model.vocab_size, model.num_real_tokens) == (96, small_chat().vocabulary) == (96, chat.vocabulary)
    assert model.eos_ids == chat.stop_tokens


def test_a_mesh_that_cannot_split_the_model_is_refused_before_anything_starts(tmp_path: Path) -> None:
    config = load_config(None, ["mesh.tensor=3"])
    with pytest.raises(ConfigError, match=r"is not a multiple of tensor \(got 3\)"):
        preflight.preflight(config, tmp_path / "run")


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("kind", ["splash", "fused"])
def test_attention_that_this_machine_cannot_run_is_refused_before_anything_starts(
    kind: str, tmp_path: Path
) -> None:
    config = load_config(None, [f"compute.attention={kind}", "generator.port=0"])
    with pytest.raises(ConfigError, match=rf'compute\.attention="{kind}".*\(got cpu, limit .pu') as caught:
        preflight.preflight(config, tmp_path / "run")
    assert 'Set compute.attention="auto", which is blockwise here.' in str(caught.value)
    preflight.preflight(config, tmp_path / "run", starts_here=False)


@pytest.mark.usefixtures("patient")
def test_a_mesh_of_more_devices_than_there_are_is_refused_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=2")
    check_devices(load_config(None, ["mesh.data=2"]))
    with pytest.raises(ConfigError, match=r"mesh data 4 x .* needs more devices \(got 2, limit 4\)"):
        check_devices(load_config(None, ["mesh.data=4"]))
    # Each of several processes has devices of its own, perhaps on another host.
    check_devices(load_config(None, ["mesh.data=4", "learner.processes=2"]))
