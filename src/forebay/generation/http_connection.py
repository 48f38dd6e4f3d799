"""One HTTP request to a generator and its answer, or the error that says what went wrong; without JAX."""

from __future__ import annotations

import aiohttp

from forebay.errors import GenerationError
from forebay.generation.protocol import BadRequestError, OverloadedError, UnreachableError
from forebay.generation.settings import ClientSettings

_EXCERPT_CHARS = 300
_CONFLICT, _BUSY = 409, (429, 503)


class NotFoundError(BadRequestError):
    """The generator has no such route: vLLM keeps no episodes, for instance."""


class Connection:
    """Requests to one address.

    Args:
        address: Base address, e.g. `http://127.0.0.1:8100`.
        settings: How long to wait for a connection and for an answer.
        token: Bearer token.
        reuse: Keep connections open between requests. vLLM closes one after it answered 500, and a request
            sent into that is lost.
    """

    def __init__(
        self, address: str, settings: ClientSettings, token: str | None, *, reuse: bool = True
    ) -> None:
        self.address, self._settings, self._reuse = address, settings, reuse
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._session: aiohttp.ClientSession | None = None

    async def request(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float | None = None
    ) -> bytes:
        """Return the body of the answer.

        Args:
            method: `GET` or `POST`.
            path: Route, with its query.
            body: JSON.
            timeout_s: Longest wait; `unresponsive_s` by default.

        Raises:
            UnreachableError: No connection, or no answer in time.
            OverloadedError: It is busy or not ready.
            BadRequestError: It refused the request.
            GenerationError: It failed.
        """
        settings = self._settings
        timeout = aiohttp.ClientTimeout(
            total=timeout_s or settings.unresponsive_s, sock_connect=settings.connect_timeout_s
        )
        headers = self._headers | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            async with self._open().request(
                method, self.address + path, data=body, headers=headers, timeout=timeout
            ) as response:
                data = await response.read()
                status = response.status
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            reason = str(error) or type(error).__name__
            raise UnreachableError(f"generator {self.address} cannot be reached: {reason}") from error
        if status != 200:
            raise self._refusal(status, data)
        return data

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _refusal(self, status: int, data: bytes) -> GenerationError:
        message = (
            f"generator {self.address} answered {status}: {data[:_EXCERPT_CHARS].decode(errors='replace')}"
        )
        if status in _BUSY:
            return OverloadedError(message)
        if status == _CONFLICT:  # the same request is still ending there, after a connection was lost
            return UnreachableError(message)
        if status == 404:
            return NotFoundError(message)
        if status == 401:
            return BadRequestError(message, remedy="Give both sides the same token through token_env.")
        return BadRequestError(message) if 400 <= status < 500 else GenerationError(message)

    def _open(self) -> aiohttp.ClientSession:
        if self._session is None or self._session.closed:
            connector = aiohttp.TCPConnector(limit=0, force_close=not self._reuse)
            self._session = aiohttp.ClientSession(connector=connector)
        return self._session
