"""Which kinds of attention run on which devices, in one table; no JAX is imported here."""

from __future__ import annotations

from typing import Final

from forebay.errors import ConfigError

# Kind of attention that is a kernel, and the platform that its compiler builds for.
KERNELS: Final = {"splash": "tpu", "fused": "gpu"}
# Kind for every platform that has no kernel.
PORTABLE: Final = "blockwise"
# NVIDIA's compute capability below which XLA builds no Triton kernel, and so no fused attention.
MIN_CAPABILITY: Final = (8, 0)


def automatic_attention(platform: str, capability: str | None = None) -> str:
    """Return the kind of attention that suits a device.

    Args:
        platform: JAX's name: cpu, gpu, tpu.
        capability: Compute capability of an NVIDIA GPU; None or another maker's name for all else.

    Example:
        >>> automatic_attention("gpu", "9.0"), automatic_attention("gpu", "7.5"), automatic_attention("cpu")
        ('fused', 'blockwise', 'blockwise')
    """
    kinds = (kind for kind, built_for in KERNELS.items() if built_for == platform)
    return next((kind for kind in kinds if _has_kernels(capability)), PORTABLE)


def check_attention(kind: str, platform: str, capability: str | None = None) -> None:
    """Refuse a kind of attention that a device cannot run: its compiler would end in an error of its own.

    Args:
        kind: `compute.attention`.
        platform: As for `automatic_attention`.
        capability: As for `automatic_attention`.

    Raises:
        ConfigError: It is a kernel for another platform, or for newer GPUs.
    """
    needed = KERNELS.get(kind)
    if needed is None or (needed == platform and _has_kernels(capability)):
        return
    newer = f" of compute capability {'.'.join(map(str, MIN_CAPABILITY))} or more" if needed == "gpu" else ""
    raise ConfigError(
        f'compute.attention="{kind}" is a kernel that these devices cannot run',
        got=f"{platform} of compute capability {capability}" if needed == platform else platform,
        limit=f"{needed}{newer}",
        remedy=f'Set compute.attention="auto", which is {automatic_attention(platform, capability)} here.',
    )


def _has_kernels(capability: str | None) -> bool:
    """Return whether kernels are built for a device; of makers that number their chips otherwise, for all."""
    major, _, minor = (capability or "").partition(".")
    if not (major.isdigit() and minor.isdigit()):
        return True
    return (int(major), int(minor)) >= MIN_CAPABILITY
