# SPDX-License-Identifier: Apache-2.0
"""The model of the agent that explains, if one does."""

from collections.abc import Callable, Mapping
from typing import Protocol as Interface
from typing import TypeVar

from ebpflb.errors import EbpflbError
from ebpflb.model.address import SocketAddress
from ebpflb.model.changes import Changes

Result = TypeVar("Result")


class Model(Interface):
    """What an agent knows."""

    def ask(self, query: Callable[[Changes], Result]) -> Result:
        """The result of `query`, in the thread that owns the model. EbpflbError."""

    def failures(self, service: str, protocol: str) -> Mapping[SocketAddress, str]:
        """The backends of a Service whose last connection failed, and how."""


class Asking:
    """Asks the model; once that has failed, no more."""

    def __init__(self, model: Model | None, why_none: str = "") -> None:
        self._model = model
        # Why there is no answer; empty if there is.
        self.failed = why_none

    def of(self, query: Callable[[Changes], Result]) -> Result | None:
        """The result of `query`; None without an answer."""
        if self._model and not self.failed:
            try:
                return self._model.ask(query)
            except EbpflbError as error:
                self.failed = str(error)
        return None

    def failures(self, service: str, protocol: str) -> Mapping[SocketAddress, str]:
        """See Model; none without one."""
        return self._model.failures(service, protocol) if self._model and service else {}
