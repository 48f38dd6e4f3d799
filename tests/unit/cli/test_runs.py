from __future__ import annotations

import json
from pathlib import Path

import pytest

from forebay.cli.roles import free_port
from forebay.cli.runs import join_run, own_run, resolve_model
from forebay.config import RunConfig, load_config
from forebay.errors import ConfigError, ModelError, RunLockedError


def config(tmp_path: Path, *overrides: str) -> RunConfig:
    return load_config(None, [f"run.directory={tmp_path}", "run.name=x", *overrides])


def test_a_run_is_made_once_and_joined_by_its_processes(tmp_path: Path) -> None:
    directory, run = own_run(config(tmp_path, "optimizer.max_gradient_norm=inf"))
    with directory:
        joined = join_run(tmp_path / "x")
        assert (joined.run_id, joined.config, joined.model) == (run.run_id, run.config, run.model)
        assert joined.chat.fingerprint == run.chat.fingerprint
        with pytest.raises(RunLockedError):
            own_run(config(tmp_path))
    directory, again = own_run(run.config)
    with directory:
        assert (directory.resumed, again.run_id) == (True, run.run_id)


@pytest.mark.parametrize(
    "override",
    [
        "launch.max_restarts=9",
        "generator.slots=8",
        "actors.episodes_per_process=8",
        "learner.steps=7",
        "learner.checkpoint_every=3",
        "store.capacity_groups=9000",
        "weights.keep_versions=5",
        "batching.prefetch=2",
    ],
)
def test_c85_what_is_kept_and_how_fast_may_change_at_a_resume(tmp_path: Path, override: str) -> None:
    own_run(config(tmp_path))[0].close()
    directory, _ = own_run(config(tmp_path, override))
    with directory:
        key, value = override.split("=")
        section, name = key.split(".")
        kept = getattr(getattr(join_run(tmp_path / "x").config, section), name)
        assert str(kept) == value


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("optimizer.learning_rate=0.5", "optimizer.learning_rate: 1e-05 -> 0.5"),
        ("staleness.max_staleness=2", "staleness.max_staleness: 8 -> 2"),
        ("generator.context=256", "generator.context: 512 -> 256"),
        ("actors.temperature=0.5", "actors.temperature: 1.0 -> 0.5"),
        ("actors.max_turn_tokens=8", "actors.max_turn_tokens: 256 -> 8"),
        ("run.seed=1", "run.seed: 0 -> 1"),
        ("store.path=elsewhere", "store.path: None -> 'elsewhere'"),
        ("environment.calculator.num_tasks=9", "environment.calculator.num_tasks: 2000 -> 9"),
        ("batching.groups=4", "batching.groups: 8 -> 4"),
    ],
)
def test_what_is_learned_may_not(tmp_path: Path, override: str, shown: str) -> None:
    own_run(config(tmp_path))[0].close()
    with pytest.raises(ConfigError, match="other settings") as caught:
        own_run(config(tmp_path, override))
    assert shown in str(caught.value)
    own_run(config(tmp_path))[0].close()


def test_a_run_may_be_moved(tmp_path: Path) -> None:
    own_run(config(tmp_path))[0].close()
    (tmp_path / "x").rename(tmp_path / "y")
    directory, _ = own_run(config(tmp_path, "run.name=y"))
    with directory:
        assert directory.resumed


@pytest.mark.parametrize("model_type", ["gpt2", "phi3", "mamba", None])
def test_a_checkpoint_of_another_architecture_is_refused_as_that(
    tmp_path: Path, model_type: str | None
) -> None:
    # Before anything else that such a directory may lack: its tokenizer, or keys of ours.
    entry = {"model_type": model_type, "n_embd": 768} if model_type else {"n_embd": 768}
    (tmp_path / "config.json").write_text(json.dumps(entry))
    with pytest.raises(
        ModelError, match=f"unsupported model_type .got {model_type!r}, limit 'llama'.*family"
    ):
        resolve_model(config(tmp_path, f"model.path={tmp_path}"))


def test_a_chosen_port_is_no_outgoing_connections() -> None:
    first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = {free_port() for _ in range(8)}
    assert len(ports) > 1
    assert all(1024 <= port < first_outgoing for port in ports)
