"""What lies in a weight directory.

```
weights/
  latest                      the version marker: the newest complete version
  base/                       the model that adapters belong to, where versions are adapters only; as below
  v-INCARNATION-VERSION/
    manifest.json             locked (shared) by whoever reads the version
    model.safetensors         or model-00001-of-00003.safetensors ...
  .partial-*  .trash-*        being written, being deleted; never read
```
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TypeVar

import msgspec

from forebay.errors import WeightsError
from forebay.trajectory import PolicyVersion
from forebay.weights.adapters import AdapterRecord

MARKER_FILE = "latest"
MANIFEST_FILE = "manifest.json"
BASE_NAME = "base"
PARTIAL_PREFIX = ".partial-"
TRASH_PREFIX = ".trash-"
FORMAT = 1
_MAX_MANIFEST_BYTES = 4 * 2**20
_VERSION_NAME = re.compile(r"v-(\d{1,9})-(\d{1,15})")
_SHARD_NAME = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors")

Record = TypeVar("Record")


class Shard(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a version.

    Args:
        name: File name inside the version's directory.
        num_bytes: Its size.
        xxh3: xxh3-128 of its bytes, hexadecimal.
    """

    name: str
    num_bytes: int
    xxh3: str

    def __post_init__(self) -> None:
        if not _SHARD_NAME.fullmatch(self.name):
            raise ValueError(f"shard name {self.name!r} is not of the form model-00001-of-00002.safetensors")


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a version consists of.

    Args:
        format: Number of this layout.
        run_id: The run that published it.
        version: Which weights these are.
        digest: `digest_of` the tensors: equal for bit-identical weights, whatever their version.
        shards: Its files.
        metadata: Free text from the publisher.
        adapter: What its tensors are adapters on; None if they are whole weights.
    """

    format: int
    run_id: str
    version: PolicyVersion
    digest: str
    shards: tuple[Shard, ...]
    metadata: dict[str, str] = {}
    adapter: AdapterRecord | None = None


class Marker(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the version marker."""

    version: PolicyVersion


def version_name(version: PolicyVersion) -> str:
    """Return the directory name of a version.

    Example:
        >>> version_name(PolicyVersion(0, 12))
        'v-0-12'
    """
    return f"v-{version.incarnation}-{version.version}"


def list_versions(path: Path) -> tuple[PolicyVersion, ...]:
    """Return the complete versions in a weight directory, oldest first; empty if there is no directory."""
    try:
        names = [entry.name for entry in path.iterdir() if (entry / MANIFEST_FILE).is_file()]
    except FileNotFoundError:
        return ()
    matches = filter(None, map(_VERSION_NAME.fullmatch, names))
    return tuple(sorted(PolicyVersion(int(match[1]), int(match[2])) for match in matches))


def read_marker(path: Path) -> PolicyVersion | None:
    """Return what the version marker names, or None if nothing has been published.

    Raises:
        WeightsError: The marker is not one of ours.
    """
    marker = path / MARKER_FILE
    try:
        with marker.open("rb", buffering=0) as file:
            data = file.read(4096)
    except FileNotFoundError:
        return None
    return parse(data, Marker, marker).version


def parse_manifest(data: bytes, source: Path) -> Manifest:
    """Decode a manifest.

    Raises:
        WeightsError: It is damaged, or of another layout.
    """
    manifest = parse(data, Manifest, source)
    if manifest.format != FORMAT:
        raise WeightsError(f"{source} has another layout", got=manifest.format, limit=FORMAT)
    return manifest


def parse(data: bytes, kind: type[Record], source: Path) -> Record:
    """Decode one of the small JSON files.

    Raises:
        WeightsError: The bytes do not decode as `kind`.
    """
    if len(data) > _MAX_MANIFEST_BYTES:
        raise WeightsError(f"{source} is too large", got=len(data), limit=_MAX_MANIFEST_BYTES)
    try:
        return msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise WeightsError(
            f"{source} is damaged: {error}",
            got=f"{len(data)} bytes",
            remedy="Restart the learner: it publishes a whole version again.",
        ) from error
