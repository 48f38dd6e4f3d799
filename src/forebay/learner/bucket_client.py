"""Objects of a bucket, `s3://` or `gs://`, by the `obstore` package; what goes wrong is said in one line.

A put is whole or absent, and what was put is what the next read gives: both services promise it. Credentials,
regions and endpoints come from the environment, by the names that the services' own tools use.

References:
    obstore, `obstore.store.S3Config` and `GCSConfig`, for the variables.
"""

from __future__ import annotations

import importlib
import logging
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import ModuleType
from typing import Any, Final, TypeVar

from forebay.clock import Clock, SystemClock
from forebay.errors import BucketError, ConfigError
from forebay.learner.checkpoint_manifest import Buffer

logger = logging.getLogger(__name__)

T = TypeVar("T")
SCHEMES: Final = ("s3", "gs")
# Of an object, how much one request carries, and how many are under way at once.
BLOCK_BYTES: Final = 16 * 2**20
_CONNECTIONS: Final = 8
# S3 takes at most 10,000 parts.
_MAX_PARTS: Final = 9_000
_REQUEST_TIMEOUT: Final = timedelta(seconds=120)
_PAUSE_S: Final = 1.0
_MAX_PAUSE_S: Final = 30.0
_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>(\w+)</Code>")
_REFUSED_NOT: Final = (408, 429)
# S3 answers so, with status 400, to an upload that stood still for some seconds.
_STALLED: Final = "RequestTimeout"
# Where the libraries of both clouds ask a machine for the credentials of its own account.
_METADATA: Final = ("latest/api/token", "latest/meta-data", "computeMetadata", "security-credentials")
_ENDPOINTS: Final = {
    "s3": ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"),
    "gs": ("GOOGLE_BASE_URL",),
}
_CREDENTIALS: Final = {
    "s3": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run where a role gives them.",
    "gs": "Set GOOGLE_APPLICATION_CREDENTIALS to a key's file, or run where a service account is attached.",
}
_CHECK: Final = (
    "Check learner.checkpoint_path, and that the credentials may list, read, write and delete there."
)
_PROBE: Final = ".probe"
_CLOCK: Final = SystemClock()


class BucketClient:
    """The objects under one prefix of a bucket.

    Waits for: the bucket, `patience_s` per call, trying again while it cannot be reached. Unblocked by: the
    bucket. What the service refuses is not tried again.

    Args:
        url: `s3://BUCKET/PREFIX` or `gs://BUCKET/PREFIX`.
        patience_s: How long to go on trying.
        retry_s: How long the package tries one request again before this says so in the log.
        clock: Measures and sleeps.

    Raises:
        ConfigError: The package is not installed, or the environment holds settings that it refuses.
    """

    def __init__(self, url: str, *, patience_s: float, retry_s: float = 20.0, clock: Clock = _CLOCK) -> None:
        self.url = url
        self._scheme = url.partition("://")[0]
        self._patience_s = patience_s
        self._clock = clock
        self._obstore = _package(url)
        self._store = self._open(url, retry_s)

    def check(self) -> None:
        """See that objects can be listed, written, read and deleted.

        Raises:
            ConfigError: The service refuses one of these.
            BucketError: The bucket cannot be reached.
        """
        self.list(_PROBE)
        name = f"{_PROBE}/{self._clock.wall_s():.6f}"
        self.put_small(name, b"probe")
        self.get(name)
        self.delete([name])

    def list(self, prefix: str | None = None) -> dict[str, int]:
        """Return the sizes of all objects by their names below the URL, or of those below a prefix in it."""
        listed = self._patiently(
            "list", lambda: self._obstore.list(self._store, prefix, chunk_size=1000).collect()
        )
        return {entry["path"]: entry["size"] for entry in listed}

    def put(self, name: str, pieces: Iterable[Buffer], num_bytes: int) -> None:
        """Write an object, or replace it, as a whole.

        Args:
            name: Below the prefix.
            pieces: Its bytes; asked for again if the bucket could not be reached.
            num_bytes: At least how many there are.
        """
        chunk = max(BLOCK_BYTES, -(-num_bytes // _MAX_PARTS))
        self._put(
            name,
            lambda: self._obstore.put(
                self._store, name, _cut(pieces), chunk_size=chunk, max_concurrency=_CONNECTIONS
            ),
        )

    def put_small(self, name: str, data: bytes) -> None:
        """Write an object that one request carries, or replace it."""
        self._put(name, lambda: self._obstore.put(self._store, name, data))

    def get(self, name: str) -> bytes:
        """Return an object.

        Raises:
            FileNotFoundError: There is none of this name.
        """
        return bytes(self._patiently("read", lambda: self._obstore.get(self._store, name).bytes()))

    def blocks(self, name: str, start: int, stop: int) -> Iterator[Buffer]:
        """Yield some bytes of an object in order, several blocks fetched at once.

        Raises:
            FileNotFoundError: There is none of this name.
        """

        def fetch(first: int) -> memoryview:
            last = min(first + BLOCK_BYTES, stop)
            return memoryview(
                self._patiently(
                    "read", lambda: self._obstore.get_range(self._store, name, start=first, end=last)
                )
            )

        if stop - start <= BLOCK_BYTES:
            yield from map(fetch, range(start, stop, BLOCK_BYTES))
            return
        window = BLOCK_BYTES * _CONNECTIONS
        with ThreadPoolExecutor(_CONNECTIONS, "bucket") as threads:
            for begin in range(start, stop, window):
                yield from threads.map(fetch, range(begin, min(begin + window, stop), BLOCK_BYTES))

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects; those that are gone already count as deleted."""

        def call() -> None:
            for name in names:
                try:
                    self._obstore.delete(self._store, name)
                except FileNotFoundError:
                    continue

        self._patiently("delete from", call)

    def _put(self, name: str, call: Callable[[], object]) -> None:
        try:
            self._patiently(f"write {name} to", call)
        except FileNotFoundError:  # of a bucket, as an object need not be there
            raise ConfigError(f"{self.url} has no such bucket", remedy=_CHECK) from None

    def _open(self, url: str, retry_s: float) -> Any:
        named = (os.environ.get(name, "") for name in _ENDPOINTS[self._scheme])
        # Whoever names an endpoint without encryption wants it.
        options = {
            "timeout": _REQUEST_TIMEOUT,
            "allow_http": any(endpoint.startswith("http://") for endpoint in named),
        }
        try:
            return self._obstore.store.from_url(
                url, client_options=options, retry_config={"retry_timeout": timedelta(seconds=retry_s)}
            )
        except (self._obstore.exceptions.BaseError, ValueError) as error:
            raise ConfigError(f"{url} cannot be opened: {_first_line(error)}") from None

    def _patiently(self, doing: str, call: Callable[[], T]) -> T:
        """Return what a call returns, trying again for as long as the bucket cannot be reached."""
        began_s, pause_s = self._clock.monotonic_s(), _PAUSE_S
        while True:
            try:
                return call()
            except self._obstore.exceptions.BaseError as error:
                refusal = self._refusal(doing, error)
                if refusal is not None:
                    raise refusal from None
                tried_s = self._clock.monotonic_s() - began_s
                if tried_s >= self._patience_s:
                    raise BucketError(
                        f"cannot {doing} {self.url}: {_first_line(error)}",
                        got=f"tried for {tried_s:.0f} s",
                        limit=f"{self._patience_s:g} s",
                        remedy="Run the command again when the bucket can be reached: nothing is lost.",
                    ) from None
                logger.warning(
                    "cannot %s %s: %s; trying again for up to %.0f s",
                    doing,
                    self.url,
                    _first_line(error),
                    self._patience_s - tried_s,
                )
            self._clock.sleep(min(pause_s, self._patience_s))
            pause_s = min(2 * pause_s, _MAX_PAUSE_S)

    def _refusal(self, doing: str, error: Exception) -> ConfigError | None:
        """Return what to raise where trying again cannot help."""
        text = str(error)
        if any(place in text for place in _METADATA):
            return ConfigError(f"no credentials for {self.url}", remedy=_CREDENTIALS[self._scheme])
        status = _STATUS.search(text)
        if status is None or not 400 <= int(status[1]) < 500 or int(status[1]) in _REFUSED_NOT:
            return None
        code = _CODE.search(text)
        if code is not None and code[1] == _STALLED:
            return None
        return ConfigError(
            f"{self.url} refuses to {doing.split()[0]}",
            got=f"{status[1]} {code[1]}" if code else status[1],
            remedy=_CHECK,
        )


def _package(url: str) -> ModuleType:
    try:
        importlib.import_module("obstore.store")
        return importlib.import_module("obstore")
    except ModuleNotFoundError:
        raise ConfigError(
            f"{url} is a bucket, and the package that reaches it is not installed: obstore",
            remedy="Install the extra: pip install 'forebay[bucket]'.",
        ) from None


def _cut(pieces: Iterable[Buffer]) -> Iterator[memoryview]:
    """Yield pieces no larger than a block, without a copy."""
    for piece in pieces:
        view = memoryview(piece)
        for first in range(0, len(view), BLOCK_BYTES):
            yield view[first : first + BLOCK_BYTES]


def _first_line(error: Exception) -> str:
    line = str(error).partition("\n")[0].strip()
    return line if len(line) <= 300 else f"{line[:297]}..."
