# SPDX-License-Identifier: Apache-2.0
"""Headless Chromium, driven over a pipe by the DevTools protocol."""

import base64
import itertools
import json
import os
import subprocess
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Self

_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
_SECONDS = 60.0
# Key -> its code, and the text that it types.
_KEYS = {
    "Tab": (9, ""),
    "Enter": (13, "\r"),
    "Escape": (27, ""),
    " ": (32, " "),
    "ArrowLeft": (37, ""),
    "ArrowUp": (38, ""),
    "ArrowRight": (39, ""),
    "ArrowDown": (40, ""),
}


class Browser:
    """One window. It records the requested addresses, and the errors of the page."""

    def __init__(self, width: int = 1280, height: int = 800) -> None:
        self.requests: list[str] = []
        self.complaints: list[str] = []
        self._numbers = itertools.count(1)
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        self._process, self._commands, self._answers = _start(self._profile.name)
        self._received = b""
        self._session = ""
        target = self.command("Target.createTarget", url="about:blank")["targetId"]
        attached = self.command("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        self.resize(width, height)
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.command(f"{domain}.enable")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        where: TracebackType | None,
    ) -> None:
        with suppress(OSError, ConnectionError):
            self._session = ""
            self.command("Browser.close")
        os.close(self._commands)
        os.close(self._answers)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._profile.cleanup()

    def command(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Its result, as in the protocol."""
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == number:
                assert "error" not in answer, (method, answer["error"])
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(self, url: str) -> None:
        """Load the page, and wait until it has drawn something."""
        self.command("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && document.body.dataset.drawn")

    def leave(self) -> tuple[list[str], list[str]]:
        """Leave the page; returns its requests and its errors."""
        self.command("Page.navigate", url="about:blank")
        self.wait("location.protocol === 'about:' && document.readyState === 'complete'")
        requests, self.requests = self.requests, []
        complaints, self.complaints = self.complaints, []
        return [each for each in requests if each != "about:blank"], complaints

    def run(self, script: str) -> Any:
        """The value of an expression in the page."""
        found = self.command(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait(self, script: str) -> None:
        """Until an expression is true."""
        deadline = time.monotonic() + _SECONDS
        while not self.run(f"Boolean({script})"):
            assert time.monotonic() < deadline, f"never true: {script}\n{self.text()[:2000]}"
            time.sleep(0.02)

    def text(self, selector: str = "body") -> str:
        """The visible text."""
        return str(self.run(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, key: str, times: int = 1) -> None:
        code, text = _KEYS[key]
        for _ in range(times):
            for kind in ("keyDown", "keyUp"):
                typed = {"text": text} if text and kind == "keyDown" else {}
                self.command(
                    "Input.dispatchKeyEvent",
                    type=kind,
                    key=key,
                    code=key,
                    windowsVirtualKeyCode=code,
                    **typed,
                )

    def tree(self) -> list[tuple[str, str]]:
        """Role and name of every element, as a screen reader gets them."""
        nodes = self.command("Accessibility.getFullAXTree")["nodes"]
        return [
            (each["role"]["value"], each.get("name", {}).get("value", ""))
            for each in nodes
            if not each["ignored"]
        ]

    def resize(self, width: int, height: int) -> None:
        """The window, in pixels."""
        size = {"width": width, "height": height}
        self.command(
            "Emulation.setDeviceMetricsOverride", **size, deviceScaleFactor=1, mobile=False
        )

    def prefer(self, scheme: str) -> None:
        """`scheme`: light or dark."""
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.command("Emulation.setEmulatedMedia", features=[feature])

    def picture(self, path: Path) -> None:
        path.write_bytes(base64.b64decode(self.command("Page.captureScreenshot")["data"]))

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._received:
            chunk = os.read(self._answers, 1 << 20)
            if not chunk:
                raise ConnectionError("chromium has ended")
            self._received += chunk
        first, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(first)
        return message

    def _note(self, event: dict[str, Any]) -> None:
        given = event.get("params", {})
        match event.get("method"):
            case "Network.requestWillBeSent":
                self.requests.append(given["request"]["url"])
            case "Runtime.exceptionThrown":
                self.complaints.append(str(given["exceptionDetails"]))
            case "Log.entryAdded" if given["entry"]["level"] == "error":
                self.complaints.append(f"{given['entry']['text']} {given['entry'].get('url', '')}")


def _start(profile: str) -> tuple[subprocess.Popen[bytes], int, int]:
    """The process, and the ends of the pipes that it has as descriptors 3 and 4."""
    theirs_in, commands = os.pipe()
    answers, theirs_out = os.pipe()
    process = subprocess.Popen(
        [
            "bash",
            "-c",
            f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}',
            "bash",
            "chromium",
            *_OPTIONS,
            f"--user-data-dir={profile}",
        ],
        pass_fds=(theirs_in, theirs_out),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(theirs_in)
    os.close(theirs_out)
    return process, commands, answers
