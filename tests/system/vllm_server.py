"""A real vLLM server as a process, on a free port of the loopback; `FOREBAY_VLLM` names its executable.

What the environment sets wins over the variables here, so that a build for another device can be tested too.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

VARIABLE = "FOREBAY_VLLM"
CONTEXT = 256
READY_S = 900.0
END_S = 30.0
UNTIED = ("--hf-overrides", '{"tie_word_embeddings": false}')
ENVIRONMENT = {
    "VLLM_SERVER_DEV_MODE": "1",
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1",
}


def executable() -> str:
    """Return vLLM's executable; the test is skipped if none is named."""
    named = os.environ.get(VARIABLE)
    if not named:
        pytest.skip(f"{VARIABLE} names no vllm executable")
    return named


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def vllm_serving(model: Path, log: Path, *options: str) -> Iterator[str]:
    """Start a server, wait until it is healthy, and yield its address."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    command = [executable(), "serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    command += ["--served-model-name", "policy", "--enable-scale-out", "--enforce-eager"]
    command += ["--logprobs-mode", "processed_logprobs", "--dtype", "float32"]
    command += ["--max-model-len", str(CONTEXT), "--max-num-seqs", "16"]
    command += ["--no-enable-chunked-prefill", *UNTIED, *options]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ENVIRONMENT | os.environ,
            start_new_session=True,
        )
    try:
        _wait_ready(process, address, log)
        yield address
    finally:
        _end(process)


def _wait_ready(process: subprocess.Popen[bytes], address: str, log: Path) -> None:
    give_up_s = time.monotonic() + READY_S
    while time.monotonic() < give_up_s:
        if process.poll() is not None:
            pytest.fail(f"vLLM ended with {process.returncode}: {_tail(log)}")
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{address}/health", timeout=5.0).status_code == 200:
                return
        time.sleep(0.2)
    pytest.fail(f"vLLM was not ready within {READY_S:g} s: {_tail(log)}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the server and the workers of its session."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=END_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-2000:]
