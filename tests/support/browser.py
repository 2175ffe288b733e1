"""A real Chromium that a test drives: it opens pages, types, evaluates scripts, by the DevTools
protocol over two pipes.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support import judge

__all__ = ["Browser", "browser"]

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
    "about:blank",
)


class PageLeft(AssertionError):
    """The page that was to answer is no longer the one that is shown."""


class Browser:
    """One page of a browser. ``complaints`` are what it says of scripts that fail and of content
    that a policy forbids.
    """

    def __init__(self, process: subprocess.Popen[bytes], orders: int, answers: int) -> None:
        self.process = process
        self.complaints: list[str] = []
        self._orders, self._answers = orders, answers
        self._number, self._buffer, self._session = 0, b"", ""
        target = self._send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log"):
            self._send(f"{domain}.enable")

    def open(self, address: str) -> None:
        """Open a page, and return when it is complete."""
        self.complaints.clear()
        self._send("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def eval(self, script: str) -> Any:
        """Return the value of an expression in the page."""
        answer = self._send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in answer, (script, answer)
        return answer["result"].get("value")

    def wait_for(self, script: str, within_s: float = 15.0) -> None:
        """Wait until an expression is true. A page that is left before it has answered says
        nothing.
        """

        def holds() -> bool:
            try:
                return bool(self.eval(script))
            except PageLeft:
                return False

        judge.wait_for(holds, within_s, lambda: f"it never was: {script}; {self.complaints}")

    def type(self, text: str) -> None:
        """Type into what has the focus."""
        self._send("Input.insertText", text=text)

    def press(self, key: str, code: int) -> None:
        """Press a key, named as in DOM events, with its virtual key code."""
        for kind in ("keyDown", "keyUp"):
            self._send(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=code,
                text="\r" * (code == 13),
            )

    def scripts(self, *, are_allowed: bool) -> None:
        """Allow or forbid scripts in pages that are opened from now on."""
        self._send("Emulation.setScriptExecutionDisabled", value=not are_allowed)

    def window(self, width: int, height: int, scheme: str = "light") -> None:
        """Lay pages out for a window of this size in CSS pixels, in ``light`` or ``dark``."""
        self._send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        self._send(
            "Emulation.setEmulatedMedia",
            features=[{"name": "prefers-color-scheme", "value": scheme}],
        )

    def shot(self, path: Path) -> None:
        """Write what the window shows as PNG."""
        path.write_bytes(
            base64.b64decode(self._send("Page.captureScreenshot", format="png")["data"])
        )

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._number += 1
        order = {"id": self._number, "method": method, "params": params} | (
            {"sessionId": self._session} if self._session else {}
        )
        os.write(self._orders, json.dumps(order).encode() + b"\0")
        while True:
            message = self._next()
            if message.get("id") == self._number:
                if "navigated" in message.get("error", {}).get("message", ""):
                    raise PageLeft(method, message)
                assert "error" not in message, (method, message)
                result: dict[str, Any] = message["result"]
                return result
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        if message.get("method") == "Log.entryAdded" and params["entry"]["level"] in (
            "error",
            "warning",
        ):
            self.complaints.append(params["entry"]["text"])

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            data = os.read(self._answers, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        text, _, self._buffer = self._buffer.partition(b"\0")
        value: dict[str, Any] = json.loads(text)
        return value


@contextmanager
def browser(home: Path, inside: Sequence[str] = ("unshare", "--net")) -> Iterator[Browser]:
    """Yield a browser, started by the words in ``inside``: where there is no network, or in a lab.
    It ends with the block.
    """
    if CHROMIUM is None:
        pytest.skip("no Chromium here")
    read_orders, orders = os.pipe()
    answers, write_answers = os.pipe()
    # The browser reads from descriptor 3 and writes to 4, whatever their numbers are here.
    script = f'exec 8<&{read_orders} 9>&{write_answers}; exec 3<&8 4>&9 8<&- 9>&-; exec "$@"'
    argv = [
        "bash",
        "-c",
        script,
        "-",
        *inside,
        CHROMIUM,
        f"--user-data-dir={home / 'browser'}",
        *FLAGS,
    ]
    process = subprocess.Popen(
        argv,
        pass_fds=(read_orders, write_answers),
        env=os.environ | {"HOME": str(home)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(read_orders)
    os.close(write_answers)
    try:
        yield Browser(process, orders, answers)
    finally:
        os.close(orders)
        os.close(answers)
        process.terminate()
        deadline = time.monotonic() + 10
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        process.kill()
        process.wait()
