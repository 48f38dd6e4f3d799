"""Published weights of a tied model as a server without tied weights loads them; no JAX is imported here."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from forebay.errors import WeightsError
from forebay.trajectory import PolicyVersion
from forebay.weights.reader import WeightReader
from forebay.weights.shard import Tensors, encode

EMBEDDING: Final = "model.embed_tokens.weight"
HEAD: Final = "lm_head.weight"


@contextmanager
def untied_view(reader: WeightReader, version: PolicyVersion) -> Iterator[Path]:
    """Yield a directory that also holds the output head, a copy of the embedding, under its own name.

    The other files are links to the published ones, which stay there until the context ends.

    Raises:
        WeightsError: The version is gone, torn, or has no embedding.
    """
    with reader.hold(version) as published, _with_head(published, reader.load(version)[1]) as view:
        yield view


@contextmanager
def untied_base(reader: WeightReader) -> Iterator[Path]:
    """Yield such a directory of the model that versions are adapters on.

    Raises:
        WeightsError: It is missing, torn, or has no embedding.
    """
    published, tensors = reader.base()
    with _with_head(published, tensors) as view:
        yield view


@contextmanager
def _with_head(published: Path, tensors: Tensors) -> Iterator[Path]:
    if EMBEDDING not in tensors:
        raise WeightsError(f"{published} has no {EMBEDDING}", got=sorted(tensors)[:3])
    with tempfile.TemporaryDirectory(prefix="forebay-") as parent:
        view = Path(parent) / published.name
        view.mkdir()
        for file in published.glob("*.safetensors"):
            (view / file.name).symlink_to(file)
        with (view / "lm_head.safetensors").open("wb") as head:
            head.writelines(encode({HEAD: tensors[EMBEDDING]}))
        yield view
