"""Bad input of every kind: one clear line with the remedy, the documented exit code, and nothing touched."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import pytest

from forebay.chat import write_small_chat
from forebay.cli.runs import own_run
from forebay.config import load_config

DRIVER = Path(__file__).with_name("cli_driver.py")
TINY = Path(__file__).parents[1] / "golden" / "models" / "tiny-vocab40"
BASE = """\
[run]
name = "x"

[generator]
port = 0
context = 64

[batching]
max_length = 64
"""


class Case(NamedTuple):
    """A command, and pieces of the one line that it should print."""

    arguments: list[str]
    named: list[str]
    code: int = 2


def train(*overrides: str) -> list[str]:
    return ["train", "run.toml", *overrides]


def broken_models() -> None:
    """Make model directories, each with one thing wrong."""
    Path("gpt").mkdir()
    Path("gpt/config.json").write_text('{"architectures": ["GPT2LMHeadModel"], "model_type": "gpt2"}')
    for name in ("cut", "odd", "small"):
        write_small_chat(Path(name))
        for file in TINY.iterdir():
            shutil.copyfile(file, Path(name) / file.name)
        entry = json.loads((TINY / "config.json").read_text()) | {"vocab_size": 64, "num_real_tokens": 64}
        (Path(name) / "config.json").write_text(json.dumps(entry))
    shard = Path("cut/model-00002-of-00002.safetensors")
    shard.write_bytes(shard.read_bytes()[:-100])
    odd = json.loads(Path("odd/config.json").read_text())
    Path("odd/config.json").write_text(json.dumps(odd | {"sliding_window": 4096}))
    shutil.copyfile(TINY / "config.json", "small/config.json")


def existing_runs(held: ExitStack) -> None:
    """Make runs without starting them: one of another format, one of another run, one that is locked."""
    config = load_config(Path("run.toml"))
    for name in ("old", "mixed", "other", "live"):
        directory, run = own_run(
            config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
        )
        run.open_store().close()
        held.enter_context(directory) if name == "live" else directory.close()
    marker = Path("runs/old/store/store.json")
    marker.write_text(json.dumps(json.loads(marker.read_text()) | {"format": 99}))
    shutil.rmtree("runs/mixed/store")
    shutil.copytree("runs/other/store", "runs/mixed/store")
    Path("broken").mkdir()
    Path("broken/manifest.json").write_text('{"format": 1')


def small_disk(held: ExitStack) -> bool:
    """Mount a disk of one megabyte, where that is allowed."""
    Path("disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", "disk"]
    try:
        subprocess.run(mount, check=True, capture_output=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return False
    held.callback(subprocess.run, ["umount", "disk"], check=True, timeout=30)
    return True


@pytest.fixture
def held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ExitStack]:
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text(BASE)
    with ExitStack() as stack:
        yield stack


def run_all(cases: list[Case]) -> list[tuple[int, str, str]]:
    done = subprocess.run(
        [sys.executable, str(DRIVER)],
        input=json.dumps([case.arguments for case in cases]),
        capture_output=True,
        text=True,
        timeout=110,
        check=True,
        env={name: value for name, value in os.environ.items() if name != "XLA_FLAGS"},
    )
    return [tuple(result) for result in json.loads(done.stdout)]


def check_all(cases: list[Case]) -> None:
    before = tree()
    wrong = {}
    for case, (code, out, err) in zip(cases, run_all(cases), strict=True):
        lines = err.splitlines()
        fine = code == case.code and out == "" and len(lines) == 1 and lines[0].startswith("error: ")
        if not fine or any(piece not in err for piece in case.named):
            wrong[" ".join(case.arguments)] = (code, out[-300:], err[-1500:])
    assert wrong == {}
    assert tree() == before


def tree() -> dict[str, int]:
    """Return every file with its size; locks and the pages that lmdb maps are no content."""
    return {
        str(path): path.stat().st_size
        for path in Path().rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".lock", ".mdb")
    }


def test_c14_c68_c70_bad_configurations(held: ExitStack) -> None:
    Path("unknown.toml").write_text("[optimizer]\nlearning_rte = 1e-5\n")
    Path("misplaced.toml").write_text("[learner]\n\nlearning_rate = 1e-5\n")
    Path("type.toml").write_text('[learner]\nsteps = "many"\n')
    check_all(
        [
            Case(["train", "nowhere.toml"], ["nowhere.toml", "Check the path"]),
            Case(["config", "check", "unknown.toml"], ["unknown.toml:2", "'optimizer.learning_rate'"]),
            Case(["train", "misplaced.toml"], ["misplaced.toml:3", "[learner]", "'optimizer.learning_rate'"]),
            Case(["train", "type.toml"], ["type.toml:2: learner.steps", "got 'many'"]),
            Case(train("batching.group_size=1"), ["got batching.group_size=1, limit 2", "no baseline"]),
            Case(train("batching.groups=7", "batching.minibatches=2"), ["minibatches in [1, 7]"]),
            Case(train("batching.groups=1", "batching.minibatches=2"), ["minibatches in [1]"]),
            Case(train("store.retained_capacity_bytes=5"), ["= 86654976", "Checkpoint more often"]),
            Case(train("generator.host=0.0.0.0"), ["generator.token_env"]),
            Case(train("generator.context=1024", "batching.max_length=1024"), ["Raise model.max_position"]),
            Case(train("launch.learner_cpus=[9999]"), ["9999", "Leave both empty"]),
            Case(["sft", "nowhere.toml"], ["nowhere.toml"]),
        ]
    )


def test_bad_models_environments_and_tasks(held: ExitStack) -> None:
    broken_models()
    Path("needy.py").write_text(
        "class Needy:\n    def __init__(self, key): ...\n"
        "    async def reset(self, task): ...\n    async def step(self, action): ...\n"
        "    async def close(self): ...\n"
    )
    Path("half.py").write_text("class Half:\n    async def reset(self, task): ...\n")
    Path("tasks.jsonl").write_text('{"task_id": "a", "payload": {"expression": "1+1"}}\n{"task_id": "b"\n')
    Path("single.jsonl").write_text('{"task_id": "a", "payload": {"expression": "1+1"}}\n')
    check_all(
        [
            Case(train("model.path=nowhere"), ["no model directory nowhere", "model.path"]),
            Case(train("model.path=cut"), ["cut/model-00002-of-00002.safetensors", "Download"]),
            Case(train("model.path=gpt"), ["gpt2", "llama"]),
            Case(train("model.path=odd"), ["sliding_window", "4096", "Choose a model without it"]),
            Case(train("model.path=small"), ["(got 64, limit 40)", "tokenizer that belongs"]),
            Case(train(f"model.path={TINY}"), ["no tokenizer.json", "model.tokenizer"]),
            Case(train("model.tokenizer=nowhere"), ["no tokenizer.json in nowhere"]),
            Case(train("model.path=cut", "--dry-run"), ["damaged"]),
            Case(train("environment.e.entrypoint=no.such:Thing"), ["no.such:Thing cannot be imported"]),
            Case(
                train("environment.e.entrypoint=calculatr"),
                ["no environment is called 'calculatr'", "'calculator'"],
            ),
            Case(train("environment.e.entrypoint=half:Half"), ["no step, close"]),
            Case(
                train("environment.e.entrypoint=needy:Needy", "environment.e.tasks=single.jsonl"), ["'key'"]
            ),
            Case(train("environment.calculator.tasks=tasks.jsonl"), ["tasks.jsonl:2", "A line looks like"]),
            Case(train("environment.calculator.tasks=nowhere.jsonl"), ["no task file nowhere.jsonl"]),
            Case(
                train("environment.calculator.tasks=single.jsonl", "learner.eval_every=1"),
                ["no task is held out", "holdout_fraction"],
            ),
        ]
    )


def test_bad_places(held: ExitStack) -> None:
    existing_runs(held)
    taken = held.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
    other = ["run.name=other", "optimizer.learning_rate=0.5", "learner.steps=200", "generator.context=32"]
    cases = [
        Case(train(f"generator.port={taken}"), [f"127.0.0.1:{taken}", "generator.port=0"]),
        Case(train("generator.token_env=NO_SUCH_TOKEN"), ["NO_SUCH_TOKEN holds no token"]),
        Case(train("run.name=old"), ["another format", "format 99", "not touched"]),
        Case(train("run.name=mixed"), ["belongs to another run", "not touched"]),
        Case(train("run.name=live"), ["live run", str(os.getpid()), "Wait for it"]),
        Case(
            train(*other), ["optimizer.learning_rate: 1e-05 -> 0.5; generator.context: 64 -> 32", "run.name"]
        ),
        Case(
            train("run.directory=run.toml"),
            ["cannot write to run.toml", "Not a directory", "Set run.directory"],
        ),
        Case(train("run.directory=/proc/forebay"), ["cannot write to /proc/forebay", "Set run.directory"]),
        Case(["act", "nowhere"], ["nowhere is not a run directory"]),
        Case(["generate", "run.toml"], ["run.toml is not a run directory"]),
        Case(["learn", "broken"], ["manifest.json is damaged"]),
        Case(["eval", "runs/other"], ["runs/other has no weights yet", "Train it first"]),
        Case(["export", "runs/other", "--to", "hf"], ["no weights"], code=4),
        Case(["export", "runs/other", "--to", "runs"], ["runs exists already"]),
        Case(["act", "runs/other"], ["generator.port=0", "--generator"]),
        Case(["store", "show", "runs/old"], ["another format"]),
        Case(["doctor", "runs"], ["runs is not a run directory"]),
        Case(["eval", "runs/other", "runs/other"], ["two different ones"]),
    ]
    if small_disk(held):
        cases.append(
            Case(train("run.directory=disk"), ["checkpoints x", "bytes free", "learner.keep_checkpoints"])
        )
    check_all(cases)


def test_usage_errors_exit_with_2(held: ExitStack) -> None:
    cases = [
        Case(["train"], ["Missing argument"]),
        Case(["trian"], ["No such command 'trian'"]),
        Case(["train", "run.toml", "--no-such-option"], ["--no-such-option"]),
        Case(["demo", "--seconds", "soon"], ["'--seconds'"]),
        Case(
            ["demo", "--seconds", "1"], ["'--seconds'", "greater than or equal to 5", "forebay demo --help"]
        ),
        Case(["store", "shw", "runs/x"], ["No such command 'shw'", "'show'", "forebay store --help"]),
        Case(["eval", "a", "b", "c"], ["one run, or two different ones", "a b c"]),
    ]
    check_all(cases)
