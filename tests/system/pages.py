"""Documentation that runs: pages become blocks, and blocks become commands in an empty directory."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Words before a block, in a comment that readers do not see:
#   file: NAME      the block is that file
#   not run: WHY    the block is only read
#   terminals       one process a line; all end when the last one has ended
_DIRECTIVE = re.compile(r"(file|not run|terminals|example|source|tree)(?:: (.*))?")
_BLOCK = re.compile(r"(?:^<!-- ([^\n]*) -->\n)?^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
# A run that several pages begin with; what it leaves is the same each time.
_TRAIN = re.compile(r"forebay train examples/\w+\.toml")
SHELLS = ("bash", "sh", "console", "shell")
_LIMIT_S = 800.0


@dataclass(frozen=True)
class Block:
    """A fenced block of a page and the words before it."""

    page: str
    line: int
    language: str
    text: str
    word: str
    value: str

    @property
    def commands(self) -> str:
        """What a shell runs; `make` is run by whoever runs the tests."""
        return "\n".join(line for line in self.text.splitlines() if not line.startswith("make "))


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text, found = page.read_text(), []
    for match in _BLOCK.finditer(text):
        directive = _DIRECTIVE.fullmatch(match[1] or "")
        word, value = (directive[1], directive[2] or "") if directive else ("", "")
        found.append(
            Block(page.name, text.count("\n", 0, match.start(2)) + 1, match[2], match[3], word, value)
        )
    return found


def short_examples(workplace: Path) -> None:
    """Make the directory in which a reader would stand, with the examples cut down to seconds."""
    examples = workplace / "examples"
    examples.mkdir()
    for example in (ROOT / "examples").iterdir():
        if example.suffix == ".toml":
            short = f'extends = "{example.resolve()}"\n{_SHORT}'
            short += _LITTLE_WORK if "[environment.calculator]" in example.read_text() else ""
            (examples / example.name).write_text(short)
        elif example.is_file():
            (examples / example.name).write_bytes(example.read_bytes())
    (workplace / ".venv").symlink_to(Path(sys.prefix), target_is_directory=True)


_SHORT = """
[learner]
steps = 2
eval_every = 0

[supervised]
num_demonstrations = 64
epochs = 1
"""
# A quarter of the episodes, with quick tools, and few shapes to compile.
_LITTLE_WORK = """
[environment.calculator.latency]
mean_s = 0.05
straggler_probability = 0.0

[batching]
groups = 8
max_programs = 2

[generator]
prefill_chunks = [160]
kv_windows = [256]
"""


def run_block(block: Block, workplace: Path, trained: Path | None = None) -> None:
    """Do what a reader would do with a block.

    Args:
        block: Of a page.
        workplace: Where the reader stands.
        trained: Keeps what plain trainings left, so that the next page that begins with one takes a copy.

    Raises:
        AssertionError: A command of it failed; the message holds its last words.
    """
    if block.word == "file":
        path = workplace / block.value
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(block.text)
    elif block.word == "terminals":
        _run_terminals(block, workplace)
    elif block.language in SHELLS:
        commands = block.commands
        first, _, rest = commands.partition("\n")
        if trained is not None and _TRAIN.fullmatch(first) and not (workplace / "runs").exists():
            _train_once(block, first, workplace, trained / first.rpartition("/")[2])
            commands = rest
        _check(block, _start(commands, workplace))
    elif block.language == "python" and block.word != "not run":
        _check(block, _start(None, workplace, [sys.executable, "-c", block.text]))


def _train_once(block: Block, command: str, workplace: Path, kept: Path) -> None:
    if not kept.exists():
        _check(block, _start(command, workplace))
        shutil.copytree(workplace / "runs", kept, symlinks=True)
    else:
        shutil.copytree(kept, workplace / "runs", symlinks=True)


def _run_terminals(block: Block, workplace: Path) -> None:
    lines = [line for line in block.commands.splitlines() if line.strip()]
    *others, last = [_start(line, workplace) for line in lines]
    try:
        _check(block, last)
    finally:
        for process in others:
            os.killpg(process.pid, signal.SIGTERM)
        for process in others:
            process.communicate(timeout=_LIMIT_S)


def _start(script: str | None, workplace: Path, argv: list[str] | None = None) -> subprocess.Popen[str]:
    environ = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    environ["PATH"] = f"{Path(sys.prefix) / 'bin'}:{environ['PATH']}"
    return subprocess.Popen(
        argv or ["bash", "-euo", "pipefail", "-c", script or ""],
        cwd=workplace,
        env=environ,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


def _check(block: Block, process: subprocess.Popen[str]) -> None:
    try:
        output, _ = process.communicate(timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
    assert process.returncode == 0, f"{block.page}:{block.line} failed\n{block.text}\n{output[-3000:]}"
