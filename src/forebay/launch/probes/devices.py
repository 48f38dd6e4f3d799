"""The devices that JAX finds, tried in a process of its own: a broken driver must not end the report."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import IO

import msgspec

from forebay.errors import ConfigError
from forebay.launch.probes.finding import Finding
from forebay.models.platforms import check_attention

LIMIT_S = 12.0
_KILL_S = 1.0
# Says where it is, so that one that hangs tells what hangs.
_PROGRAM = """
import json
print("importing jax", flush=True)
import jax, jax.numpy as jnp
print("waiting for its devices", flush=True)
devices = jax.devices()
print("compiling a small program", flush=True)
total = float(jax.jit(lambda x: (x @ x).sum())(jnp.ones((8, 8))))
seen = {"version": jax.__version__, "backend": jax.default_backend(), "count": len(devices),
        "kind": devices[0].device_kind, "total": total,
        "capability": getattr(devices[0], "compute_capability", None)}
print(json.dumps(seen), flush=True)
"""
_EXPECTED = 512.0


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """What JAX reported.

    Args:
        version: Of JAX.
        backend: cpu, gpu or tpu.
        count: Devices.
        kind: Of the first device.
        total: Sum of an 8 x 8 product of ones; 512 if arithmetic works.
        capability: Compute capability of the first device, if it is a GPU.
    """

    version: str
    backend: str
    count: int
    kind: str
    total: float
    capability: str | None = None


def look_at_devices(num_needed: int = 1, attention: str = "auto", limit_s: float = LIMIT_S) -> list[Finding]:
    """Import JAX, list its devices, and run a compiled product on the first.

    Args:
        num_needed: Devices that the configured mesh has.
        attention: Kind of attention that the first must run.
        limit_s: Longest time for all of it, seconds.
    """
    seen = ask_devices(limit_s)
    return [seen if isinstance(seen, Finding) else judge(seen, num_needed, attention)]


def ask_devices(limit_s: float = LIMIT_S) -> Seen | Finding:
    """Return what JAX reports, or what it failed at.

    Args:
        limit_s: Longest time for all of it, seconds.
    """
    # Of a GPU only what the product needs: a run may hold the rest.
    environ = os.environ | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    process = subprocess.Popen(
        [sys.executable, "-c", _PROGRAM],
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as expired:
        _end(process)
        return _hanging(_stage(expired.stdout), limit_s)
    if process.returncode:
        shown = " ".join(err.strip().splitlines()[-1:])
        remedy = "pip install 'forebay[learner]' (or cuda, or tpu), or choose another: JAX_PLATFORMS=cpu"
        return Finding("devices", "bad", f"jax failed while {_stage(out)}: {shown}", remedy)
    return msgspec.json.decode(out.splitlines()[-1], type=Seen)


def judge(seen: Seen, num_needed: int, attention: str = "auto") -> Finding:
    """Compare what JAX reported with what a run needs."""
    text = f"{seen.count} {seen.kind} ({seen.backend}), jax {seen.version}"
    if seen.total != _EXPECTED:
        return Finding("devices", "bad", f"{text}: a product came out as {seen.total}", "Replace the device.")
    if seen.count < num_needed:
        remedy = "Lower mesh.data, mesh.fsdp or mesh.tensor: their product is the number of devices."
        return Finding("devices", "bad", f"{text}, but the mesh has {num_needed}", remedy)
    try:
        check_attention(attention, seen.backend, seen.capability)
    except ConfigError as error:
        return Finding("devices", "bad", f"{text}: {error.what}", error.remedy or "")
    return Finding("devices", "ok", f"{text}, a compiled product runs")


def _hanging(stage: str, limit_s: float) -> Finding:
    seen = f"jax was still {stage} after {limit_s:.0f} s"
    if stage == "importing jax":
        return Finding("devices", "warn", seen, "Try again on an idle machine.")
    remedy = "Another process may hold the device; try JAX_PLATFORMS=cpu forebay doctor."
    return Finding("devices", "bad", seen, remedy)


def _stage(output: str | bytes | None) -> str:
    text = output.decode(errors="replace") if isinstance(output, bytes) else output or ""
    lines = text.strip().splitlines()
    return lines[-1] if lines else "starting python"


def _end(process: subprocess.Popen[str]) -> None:
    """Kill it, and leave it behind if a driver does not let it go."""
    process.kill()
    streams: list[IO[str] | None] = [process.stdout, process.stderr]
    try:
        process.wait(_KILL_S)
    except subprocess.TimeoutExpired:
        return
    for stream in streams:
        if stream is not None:
            stream.close()
