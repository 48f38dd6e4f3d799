"""A headless Chromium, spoken to over its debugging protocol: pages are looked at as people see them."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import itertools
import json
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions",
    "--hide-scrollbars", "--remote-debugging-port=0", "about:blank",
)  # fmt: skip
_START_S = 60.0
_ANSWER_S = 60.0


class Page:
    """One page of the browser.

    Attributes:
        errors: What the page complained about: exceptions, console errors, refusals of its policy.
        requests: Every address that it asked for.
    """

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self._loaded = False
        self.errors: list[str] = []
        self.requests: list[str] = []

    async def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Call a method of the protocol and return its result; events are noted meanwhile."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        async with asyncio.timeout(_ANSWER_S):
            while True:
                message = json.loads((await self._socket.receive()).data)
                if message.get("id") == number:
                    assert "error" not in message, message
                    return message["result"]
                self._note(message)

    async def open(self, path: Path, *, width: int, dark: bool = False, height: int = 900) -> None:
        """Open a file in a window of a width, and wait until it is loaded."""
        for domain in ("Page", "Runtime", "Network", "Log"):
            await self.send(f"{domain}.enable")
        await self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=width < 600,
        )  # fmt: skip
        scheme = "dark" if dark else "light"
        await self.send(
            "Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}]
        )
        self._loaded = False
        await self.send("Page.navigate", url=path.absolute().as_uri())
        while not self._loaded:
            await self.evaluate("1")
            await asyncio.sleep(0.02)

    async def evaluate(self, expression: str) -> Any:
        """Return the value of an expression on the page."""
        result = await self.send(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    async def screenshot(self, to: Path, *, whole: bool = True) -> None:
        """Write a picture of the page."""
        result = await self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        if whole:
            size = await self.evaluate(
                "[document.documentElement.scrollWidth, document.documentElement.scrollHeight]"
            )
            clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
            result = await self.send("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        to.write_bytes(base64.b64decode(result["data"]))

    async def pdf(self, to: Path) -> None:
        """Write the page as it is printed."""
        result = await self.send("Page.printToPDF", printBackground=True)
        to.write_bytes(base64.b64decode(result["data"]))

    def _note(self, message: dict[str, Any]) -> None:
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(parameters["exceptionDetails"])[:500])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.errors.append(json.dumps(parameters["args"])[:500])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.errors.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@asynccontextmanager
async def browser() -> AsyncIterator[Page]:
    """Start a browser with a profile of its own, and end it."""
    assert CHROMIUM is not None
    with _profile() as profile:
        process = await asyncio.create_subprocess_exec(
            CHROMIUM, f"--user-data-dir={profile}", *_FLAGS,
            stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        try:
            port = await _port(Path(profile))
            async with aiohttp.ClientSession() as session:
                async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                    targets = await answer.json()
                address = next(t["webSocketDebuggerUrl"] for t in targets if t["type"] == "page")
                async with session.ws_connect(address, max_msg_size=0) as socket:
                    yield Page(socket)
        finally:
            process.terminate()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(10):
                    await process.wait()


async def _port(profile: Path) -> int:
    file = profile / "DevToolsActivePort"
    async with asyncio.timeout(_START_S):
        while not (file.exists() and "\n" in file.read_text()):
            await asyncio.sleep(0.05)
    return int(file.read_text().splitlines()[0])


@contextlib.contextmanager
def _profile() -> Iterator[str]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        yield profile
