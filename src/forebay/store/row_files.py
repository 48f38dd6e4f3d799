"""Files of rows: JSONL, or Parquet where pyarrow is installed; streamed, and whole or not at all."""

from __future__ import annotations

import importlib
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec

from forebay.errors import ConfigError, PeerFailedError
from forebay.store.rows import SCHEMA, SCHEMA_VERSION

SUFFIXES: Final = (".jsonl", ".parquet")
# Rows of a Parquet row group: as many as have about so many tokens, since that is what takes the memory.
_GROUP_TOKENS: Final = 1 << 20
_GROUP_ROWS: Final = 4096
# Columns of plain values, in order; metrics, fingerprints, steps and sequences follow.
_COLUMNS: Final = {
    "schema_version": "count",
    "state": "text",
    "step": "count",
    "oldest_incarnation": "count",
    "oldest_version": "count",
    "num_tokens": "count",
    "num_action_tokens": "count",
    "task_payload": "text",
    "task_seed": "count",
    "trajectory_id": "text",
    "run_id": "text",
    "incarnation": "count",
    "group_id": "text",
    "group_size": "count",
    "member": "count",
    "attempt": "count",
    "task_id": "text",
    "environment": "text",
    "reward": "real",
    "terminated": "flag",
    "truncated": "flag",
    "finish": "text",
    "started_s": "real",
    "finished_s": "real",
    "admission_s": "real",
}


class RowWriter(Protocol):
    """Where rows go."""

    def write(self, row: dict[str, Any]) -> None:
        """Add a row."""
        ...

    def close(self) -> None:
        """Write what is left."""
        ...


@contextmanager
def row_file(path: Path, *, force: bool = False) -> Iterator[RowWriter]:
    """Open a file for rows; it appears under its name when all of it is written, or not at all.

    Args:
        path: Ends in .jsonl or .parquet.
        force: Whether to replace a file that is there.

    Raises:
        ConfigError: Another suffix, no such directory, a file is there already, or pyarrow is missing.
        PeerFailedError: The disk is full or cannot be written.
    """
    open_writer = _writer_of(path)
    if path.is_dir() or (path.exists() and not force):
        raise ConfigError(f"{path} exists already", remedy="Choose another name, or add --force.")
    if not path.parent.is_dir():
        raise ConfigError(f"there is no directory {path.parent}", remedy="Make it first.")
    part = path.with_name(f".{path.name}.{secrets.token_hex(8)}.part")
    try:
        writer = open_writer(part)
        try:
            yield writer
        finally:
            writer.close()
        _sync(part)
        if force:
            part.replace(path)
        else:
            os.link(part, path)  # unlike a rename, it refuses a file that has appeared meanwhile
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already", remedy="Add --force to replace it.") from error
    except OSError as error:
        raise PeerFailedError(f"cannot write {path}: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def read_rows(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file.

    Raises:
        ConfigError: Another suffix, or pyarrow is missing.
    """
    if path.suffix == ".parquet":
        with _pyarrow("pyarrow.parquet").ParquetFile(path) as file:
            for batch in file.iter_batches(batch_size=64):
                yield from batch.to_pylist()
    elif path.suffix == ".jsonl":
        with path.open("rb") as lines:
            for line in lines:
                yield msgspec.json.decode(line)
    else:
        raise _other_suffix(path)


class JsonLines:
    """One JSON object a line.

    Args:
        path: The file; it must not exist.
    """

    def __init__(self, path: Path) -> None:
        self._file = path.open("xb")
        self._encode = msgspec.json.Encoder().encode

    def write(self, row: dict[str, Any]) -> None:
        """Add a line."""
        self._file.write(self._encode(row))
        self._file.write(b"\n")

    def close(self) -> None:
        """Write what is left."""
        self._file.close()


class Parquet:
    """A Parquet file, one row group after the other.

    Args:
        path: The file.

    Raises:
        ConfigError: pyarrow is missing.
    """

    def __init__(self, path: Path) -> None:
        self._arrow = _pyarrow("pyarrow")
        self._schema = parquet_schema()
        self._writer = _pyarrow("pyarrow.parquet").ParquetWriter(path, self._schema, compression="zstd")
        self._rows: list[dict[str, Any]] = []
        self._num_tokens = 0

    def write(self, row: dict[str, Any]) -> None:
        """Add a row; a full group is written."""
        self._rows.append(row)
        self._num_tokens += row["num_tokens"]
        if self._num_tokens >= _GROUP_TOKENS or len(self._rows) >= _GROUP_ROWS:
            self._flush()

    def close(self) -> None:
        """Write what is left, and the footer."""
        if self._rows:
            self._flush()
        self._writer.close()

    def _flush(self) -> None:
        self._writer.write_table(self._arrow.Table.from_pylist(self._rows, schema=self._schema))
        self._rows, self._num_tokens = [], 0


def parquet_schema() -> Any:
    """Return the columns of a Parquet file, as a `pyarrow.Schema` with the version in its metadata.

    Raises:
        ConfigError: pyarrow is missing.
    """
    pa = _pyarrow("pyarrow")
    count, text, real, flag = pa.int64(), pa.string(), pa.float64(), pa.bool_()
    step = pa.struct(
        [("reward", real), ("finish", text)]
        + [(name, real) for name in ("generator_wait_s", "generate_s", "environment_s")]
    )
    span = pa.struct([(name, count) for name in ("start", "stop", "step")])
    versions = ("num_tokens", "incarnation", "version", "kv_incarnation", "kv_version")
    sequence = pa.struct(
        [
            ("tokens", pa.list_(pa.int32())),
            ("behavior_logprobs", pa.list_(pa.float32())),
            ("action_spans", pa.list_(span)),
            ("version_spans", pa.list_(pa.struct([(name, count) for name in versions]))),
            ("temperature", real),
            ("top_p", real),
            ("top_k", count),
            ("logprob_kind", text),
        ]
    )
    kinds = {"count": count, "text": text, "real": real, "flag": flag}
    columns = [(name, kinds[kind]) for name, kind in _COLUMNS.items()]
    columns += [("metrics", pa.map_(text, real)), ("tokenizer", text), ("model", text)]
    columns += [("reset_s", real)]
    columns += [("steps", pa.list_(step)), ("sequences", pa.list_(sequence))]
    return pa.schema(columns, metadata={SCHEMA: str(SCHEMA_VERSION)})


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _writer_of(path: Path) -> Any:
    if path.suffix == ".parquet":
        _pyarrow("pyarrow.parquet")
        return Parquet
    if path.suffix == ".jsonl":
        return JsonLines
    raise _other_suffix(path)


def _other_suffix(path: Path) -> ConfigError:
    return ConfigError("a file of rows ends in .jsonl or .parquet", got=path.name, remedy="Rename it.")


def _pyarrow(module: str) -> Any:
    """Import pyarrow, which nothing else here needs."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ConfigError(
            "Parquet needs the package pyarrow",
            remedy="Install it: pip install 'forebay[parquet]'. Or write .jsonl, which needs none.",
        ) from error
