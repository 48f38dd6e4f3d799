"""A bucket of checkpoints: whole or absent though nothing can be renamed there.

```
s3://BUCKET/PREFIX/RUN_ID/
  step_100-2-1a2b3c4d5e6f/  step, the learner's life that wrote it, hash of its arrays
    state.safetensors       as in a directory; one for each process of the learner
    manifest.json           written last: without it nothing here counts
  step_80-1-.../
    best.json               in the manifest's place once retention has moved a checkpoint aside
```
No object is ever replaced by another content but a manifest by one with a new cursor or metric, so that a
learner that was killed, or one that still lives somewhere, spoils nothing that counts.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from forebay.errors import CheckpointError
from forebay.learner.bucket_client import BucketClient
from forebay.learner.checkpoint_manifest import (
    MANIFEST_FILE,
    MAX_MANIFEST_BYTES,
    Buffer,
    CheckpointFile,
    CheckpointManifest,
    HashedPieces,
    hash_pieces,
    parse_manifest,
)
from forebay.learner.checkpoint_shelf import Draft, refuse_altered, refuse_missing_files
from forebay.telemetry.faults import fault_point

logger = logging.getLogger(__name__)

BEST_FILE: Final = "best.json"
_MARKS: Final = (MANIFEST_FILE, BEST_FILE)
_FOLDER: Final = re.compile(r"step_(\d{1,15})-(\d{1,15})-([0-9a-f]{12})")


@dataclass(frozen=True, slots=True)
class BucketFolder:
    """A checkpoint in a bucket; see `forebay.learner.checkpoint_shelf.Folder`.

    Args:
        client: The objects of the run.
        name: Of the folder.
        sizes: Of the objects in it, as they were listed.
        mark: The object that is its manifest.
    """

    client: BucketClient = field(compare=False)
    name: str
    sizes: dict[str, int] = field(compare=False)
    mark: str

    def __str__(self) -> str:
        return f"{self.client.url}/{self.name}"

    def manifest(self) -> CheckpointManifest:
        """Return the manifest."""
        if self.sizes.get(self.mark, 0) > MAX_MANIFEST_BYTES:
            raise CheckpointError(
                f"manifest of {self.name} is too large", got=self.sizes[self.mark], limit=MAX_MANIFEST_BYTES
            )
        try:
            return parse_manifest(self.client.get(f"{self.name}/{self.mark}"), self.name)
        except FileNotFoundError:
            raise CheckpointError(f"{self.name} has no manifest") from None

    def files(self) -> set[str]:
        """Return the names of all objects but the manifest."""
        return self.sizes.keys() - set(_MARKS)

    def num_bytes(self, file: str) -> int:
        """Return the size of a file."""
        return self.sizes.get(file, 0)

    def pieces(self, file: str) -> Iterator[Buffer]:
        """Yield the bytes of a whole file."""
        return self._blocks(file, 0, self.num_bytes(file))

    def read(self, file: str, start: int, stop: int) -> npt.NDArray[np.uint8]:
        """Return [N] uint8, some bytes of a file, fetched."""
        data = np.empty(stop - start, np.uint8)
        at = 0
        for block in self._blocks(file, start, stop):
            data[at : at + len(block)] = np.frombuffer(block, np.uint8)
            at += len(block)
        data.flags.writeable = False
        return data

    def _blocks(self, file: str, start: int, stop: int) -> Iterator[Buffer]:
        try:
            yield from self.client.blocks(f"{self.name}/{file}", start, stop)
        except FileNotFoundError:
            raise CheckpointError(f"{self.name}/{file} is missing") from None


class BucketShelf:
    """The checkpoints of one run in a bucket; see `forebay.learner.checkpoint_shelf.Shelf`.

    Args:
        client: The objects of the run.
    """

    def __init__(self, client: BucketClient) -> None:
        self._client = client

    def __str__(self) -> str:
        return self._client.url

    def prepare(self) -> None:
        """See that objects can be written and deleted; delete what a killed writer left."""
        self._client.check()
        for name, sizes in self._list().items():
            if not sizes.keys() & set(_MARKS):
                logger.warning("deletes %s/%s, which was not finished", self, name)
                self._client.delete([f"{name}/{file}" for file in sizes])

    def folders(self, *, best: bool = False) -> dict[int, BucketFolder]:
        """Return the checkpoints by step, ascending: of one step, what the newest life wrote."""
        found: dict[int, BucketFolder] = {}
        for folder, _ in self._by_age():
            if folder.mark == (BEST_FILE if best else MANIFEST_FILE):
                found[_step(folder.name)] = folder
        return found

    def begin(self, draft: Draft) -> bool:
        """Return True: a bucket has room."""
        return True

    def full(self, draft: Draft) -> CheckpointError:
        """Return what to raise where there is no room; a bucket says so itself."""
        return CheckpointError(f"cannot save {self}/{_name(draft)}: no room")

    def write(self, draft: Draft, file: str, pieces: Iterable[Buffer], num_bytes: int) -> CheckpointFile:
        """Write a file of a draft, and read it back."""
        name, passes = f"{_name(draft)}/{file}", _Passes(pieces)
        self._client.put(name, passes, num_bytes)
        written = passes.last.file(file)
        found = hash_pieces(file, self._client.blocks(name, 0, written.num_bytes))
        refuse_altered(f"{self}/{name}", found, written)
        return written

    def install(self, draft: Draft, manifest: CheckpointManifest) -> None:
        """See that every file is there, and write the manifest; delete what it replaces.

        What a newer life wrote of this step stays: this one may be thought dead.
        """
        name = _name(draft)
        folder = BucketFolder(self._client, name, self._list().get(name, {}), MANIFEST_FILE)
        refuse_missing_files(folder, manifest)
        fault_point("checkpoint_written", draft.step)
        self.renew(folder, manifest)
        for other, life in self._by_age():
            replaced = other.mark == MANIFEST_FILE and _step(other.name) == draft.step and other != folder
            if replaced and life <= draft.incarnation:
                self.delete(other)

    def renew(self, folder: BucketFolder, manifest: CheckpointManifest) -> None:
        """Write the manifest of a checkpoint, or replace it."""
        self._client.put_small(f"{folder.name}/{MANIFEST_FILE}", msgspec.json.encode(manifest.sealed()))

    def set_aside(self, folder: BucketFolder) -> BucketFolder:
        """Give a checkpoint the mark of the best in place of its manifest."""
        data = self._client.get(f"{folder.name}/{folder.mark}")
        self._client.put_small(f"{folder.name}/{BEST_FILE}", data)
        self._client.delete([f"{folder.name}/{folder.mark}"])
        return BucketFolder(self._client, folder.name, folder.sizes, BEST_FILE)

    def delete(self, folder: BucketFolder) -> None:
        """Delete a checkpoint: what makes it count first."""
        files = [*_MARKS, *folder.files()]
        self._client.delete([f"{folder.name}/{file}" for file in files])

    def _by_age(self) -> Sequence[tuple[BucketFolder, int]]:
        """Return the folders that count, by step and by the life that wrote them."""
        found = []
        for name, sizes in self._list().items():
            mark = next((mark for mark in _MARKS if mark in sizes), None)
            if mark is not None:
                found.append((BucketFolder(self._client, name, sizes, mark), _life(name)))
        return sorted(found, key=lambda entry: (_step(entry[0].name), entry[1], entry[0].name))

    def _list(self) -> dict[str, dict[str, int]]:
        """Return the sizes of the objects of each folder, finished or not."""
        folders: dict[str, dict[str, int]] = {}
        for path, size in self._client.list().items():
            name, _, file = path.partition("/")
            if file and _FOLDER.fullmatch(name):
                folders.setdefault(name, {})[file] = size
        return folders


class _Passes:
    """The pieces of a file, hashed anew each time that they are asked for."""

    def __init__(self, pieces: Iterable[Buffer]) -> None:
        self._pieces = pieces
        self.last = HashedPieces(())

    def __iter__(self) -> Iterator[Buffer]:
        self.last = HashedPieces(self._pieces)
        return iter(self.last)


def _name(draft: Draft) -> str:
    return f"step_{draft.step}-{draft.incarnation}-{draft.digest[:12]}"


def _step(name: str) -> int:
    return int(name.partition("-")[0].removeprefix("step_"))


def _life(name: str) -> int:
    return int(name.split("-")[1])
