# SPDX-License-Identifier: Apache-2.0
"""Keeps what the API server has in a file, and serves that if it does not answer at the start."""

import logging
import threading
import time

from ebpflb.errors import SourceError
from ebpflb.log import fields
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.source.kubernetes import KubernetesSource
from ebpflb.source.state_file import StateFile

_log = logging.getLogger("ebpflb.source")

# How long the API server has to answer before the kept state is served.
PATIENCE_SECONDS = 5.0
_LOOK_SECONDS = 0.2
# The file is written at most so often, and takes at most one in so many seconds of a CPU.
KEEP_SECONDS = 30.0
_CPU_SHARE = 100
_PAUSE_SECONDS = 0.02


class LastState:
    """Works in its own thread, from start() to stop()."""

    def __init__(
        self,
        source: KubernetesSource,
        file: StateFile,
        most_seconds: float,
        *,
        may_serve: bool = True,
        patience: float = PATIENCE_SECONDS,
    ) -> None:
        """`most_seconds`: how old the state may be when it is served, if it may be served."""
        self._source = source
        self._file = file
        self._most_seconds = most_seconds
        self._may_serve = may_serve
        self._patience = patience
        self._stopped = threading.Event()
        self._wait = KEEP_SECONDS
        # The version that the file has; none yet.
        self._kept = -1
        self._trouble = ""
        self._thread = threading.Thread(target=self._run, name="ebpflb-state", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Keep the last changes, and end."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        if self._may_serve:
            self._serve_unless_listed()
        while not self._stopped.wait(self._wait):
            self._keep()
        self._keep()

    def _serve_unless_listed(self) -> None:
        began = time.monotonic()
        while self._source.is_listing and not self._stopped.wait(_LOOK_SECONDS):
            # A list that takes long is none that fails.
            if self._source.is_failing and time.monotonic() - began >= self._patience:
                self._serve()
                return

    def _serve(self) -> None:
        try:
            state = self._file.read(self._most_seconds, time.time())
        except SourceError as error:
            _log.warning("the API server does not answer, and no kept state is served: %s", error)
            return
        if state.left_out:
            text = "%d objects of the kept state cannot be read"
            _log.warning(text, len(state.left_out), extra=fields(first=state.left_out[0]))
        self._source.serve(state.objects, state.as_of)

    def _keep(self) -> None:
        now = time.time()
        current = self._source.current()
        if current is None:
            return
        before = time.thread_time()
        try:
            self._write(*current, now)
        except OSError as error:
            self._kept = -1
            self._report(f"{self._file.path}: {error.strerror}")
        else:
            self._report("")
        self._wait = max(KEEP_SECONDS, _CPU_SHARE * (time.thread_time() - before))

    def _write(self, version: int, objects: list[ApiObject], now: float) -> None:
        if version == self._kept:
            self._file.stamp(now)
            return
        self._file.write(objects, now, self._pause)
        self._kept = version

    def _pause(self) -> None:
        """Not once stopped."""
        self._stopped.wait(_PAUSE_SECONDS)

    def _report(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.warning("cannot keep the state for a start without the API server: %s", trouble)
        self._trouble = trouble
