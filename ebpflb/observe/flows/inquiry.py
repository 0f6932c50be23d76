# SPDX-License-Identifier: Apache-2.0
"""Questions of other threads about the objects, which the loop alone may look at."""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

from ebpflb.errors import EbpflbError
from ebpflb.model.changes import Changes

Answer = TypeVar("Answer")

# A start that compiles and fills the maps takes some seconds, in which nobody answers.
PATIENCE_SECONDS = 15.0


class Inquiry(Generic[Answer]):
    """One question; the thread that asks waits, the loop answers between two changes."""

    def __init__(self, question: Callable[[Changes], Answer]) -> None:
        self._question = question
        self._answer: Future[Answer] = Future()

    def answer(self, changes: Changes | None) -> None:
        """For the loop. None: the source has not told everything yet."""
        try:
            if changes is None:
                raise EbpflbError("the agent has not read all objects yet: try again")  # noqa: TRY301  the asker's
            self._answer.set_result(self._question(changes))
        except Exception as error:  # noqa: BLE001  whatever it is, it belongs to the one who asked
            self._answer.set_exception(error)

    def wait(self) -> Answer:
        """For who asks. EbpflbError when no answer comes in time."""
        try:
            return self._answer.result(PATIENCE_SECONDS)
        except TimeoutError as error:
            raise EbpflbError("the agent is busy: try again") from error
