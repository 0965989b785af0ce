"""A headless Chromium, driven by its own DevTools protocol: it is all that a test of one page needs."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

_FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --no-first-run --hide-scrollbars "
    "--disable-extensions --disable-background-networking --remote-debugging-port=0"
).split()
_CODES = {"Tab": 9, "Escape": 27}
_START_S = 60.0
_POLL_S = 0.05


class Browser:
    """One page of it."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._numbers = itertools.count(1)
        self.complaints: list[str] = []
        """What the page wrote to its console, what it threw, and what its policy forbade."""

    async def call(self, method: str, **arguments: Any) -> dict[str, Any]:
        """One call of the DevTools protocol. Raises AssertionError if it fails."""
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": arguments})
        while True:
            message = json.loads((await self._socket.receive(timeout=_START_S)).data)
            if message.get("method") in ("Runtime.exceptionThrown", "Log.entryAdded", "Runtime.consoleAPICalled"):
                self.complaints.append(json.dumps(message["params"]))
            if message.get("id") == number:
                assert "error" not in message, message
                answer: dict[str, Any] = message["result"]
                return answer

    async def run(self, script: str) -> Any:
        """The value of an expression in the page. Raises AssertionError if it throws."""
        told = await self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    async def until(self, script: str) -> None:
        """Wait until an expression is true in the page. Raises AssertionError if it never is."""
        for _ in range(int(_START_S / _POLL_S)):
            if await self.run(f"!!({script})"):
                return
            await asyncio.sleep(_POLL_S)
        raise AssertionError(f"never true: {script}")

    async def press(self, key: str) -> None:
        """Press one key."""
        more: dict[str, Any] = {"text": key} if len(key) == 1 else {"windowsVirtualKeyCode": _CODES[key], "code": key}
        for kind in ("keyDown", "keyUp"):
            await self.call("Input.dispatchKeyEvent", type=kind, key=key, **more)

    async def size(self, width: int, height: int, scale: float = 1.0, dark: bool = False) -> None:
        """The window's size in CSS pixels, and which colours the system prefers."""
        await self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=scale,
            mobile=width < 700,
        )
        colours = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        await self.call("Emulation.setEmulatedMedia", features=[colours])

    async def screenshot(self, path: Path) -> None:
        """What can be seen, as PNG."""
        told = await self.call("Page.captureScreenshot", format="png")
        await asyncio.to_thread(path.write_bytes, base64.b64decode(told["data"]))


@asynccontextmanager
async def browsing(folder: Path, url: str) -> AsyncIterator[Browser]:
    """A browser that shows a page, with a profile in `folder`."""
    program = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser") or "chromium"
    process = await asyncio.create_subprocess_exec(
        program, *_FLAGS, f"--user-data-dir={folder}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _port(folder / "DevToolsActivePort", process)
        async with aiohttp.ClientSession() as session:
            async with session.get(f"http://127.0.0.1:{port}/json/list") as answer:
                (page,) = (each for each in await answer.json() if each["type"] == "page")
            async with session.ws_connect(page["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                browser = Browser(socket)
                for domain in ("Page", "Runtime", "Log"):
                    await browser.call(f"{domain}.enable")
                await browser.size(1280, 800)
                await browser.call("Page.navigate", url=url)
                await browser.until("location.protocol === 'http:' && document.readyState === 'complete'")
                yield browser
    finally:
        process.terminate()
        await process.wait()


async def _port(file: Path, process: asyncio.subprocess.Process) -> int:
    for _ in range(int(_START_S / _POLL_S)):
        if port := _written(file):
            return port
        assert process.returncode is None, "the browser ended at once"
        await asyncio.sleep(_POLL_S)
    raise AssertionError("the browser does not start")


def _written(file: Path) -> int:
    """The port that the browser wrote down, 0 before that."""
    lines = file.read_text().splitlines() if file.exists() else []
    return int(lines[0]) if len(lines) > 1 else 0
