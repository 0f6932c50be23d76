# SPDX-License-Identifier: Apache-2.0
"""Runs load.py inside a namespace and reads its result."""

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

from ebpflb.errors import EbpflbError
from ebpflb.lab import load
from ebpflb.lab.load import LoadOptions, LoadResult

Popen = Callable[..., "subprocess.Popen[Any]"]

_START_TIMEOUT = 10.0
# Beyond the time that the slowest connection may take.
_STOP_TIMEOUT = 10.0


class LoadRun:
    """A load under way. It writes into a file, so it never waits for its reader.

    As a context manager it does not outlive the block; what it found is lost if nobody asked.
    """

    def __init__(self, popen: Popen, address: str, port: int, options: LoadOptions) -> None:
        self._options = options
        self._output = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the run
        script = [sys.executable, "-I", "-S", str(Path(load.__file__))]
        self._process = popen(
            [*script, *options.arguments(), "--", address, str(port)],
            stdout=self._output,
            stderr=subprocess.STDOUT,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def wait_started(self) -> None:
        """Return when connections are being made. EbpflbError if that does not come."""
        deadline = time.monotonic() + _START_TIMEOUT
        while not self._text().startswith(load.STARTED):
            if self._process.poll() is not None or time.monotonic() > deadline:
                said = self._text().strip()[-500:]
                self.kill()
                raise EbpflbError(f"the load did not start: {said}")
            time.sleep(0.005)

    def result(self, timeout: float | None = None) -> LoadResult:
        """Wait for the end and count. EbpflbError when it does not end or broke off."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.kill()
            raise EbpflbError(f"the load was still running after {timeout} s") from error
        try:
            return load.parse_output(self._text())
        except ValueError as error:
            raise EbpflbError(f"{error}: {self._text().strip()[-500:]}") from error
        finally:
            self._output.close()

    def stop(self) -> LoadResult:
        """No new connections; the result when those under way have ended."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
        return self.result(self._options.timeout + _STOP_TIMEOUT)

    def kill(self) -> None:
        """End it without a result; nothing happens if it has ended."""
        self._process.kill()
        self._process.wait()
        self._output.close()

    def _text(self) -> str:
        self._output.flush()
        self._output.seek(0)
        return self._output.read()
