# SPDX-License-Identifier: Apache-2.0
"""A request, its answer, and how to make one without delaying others."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from http import HTTPStatus
from queue import SimpleQueue
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

JSON = "application/json"
TEXT = "text/plain; charset=utf-8"

Result = TypeVar("Result")


class Request(NamedTuple):
    """hosts: the values of the Host header.

    accept, encodings: of all Accept and Accept-Encoding headers, with commas. headers: all, with
    names in lower case. subject: the common name of the client's certificate, "" without one.
    """

    method: str
    target: str
    hosts: tuple[str, ...] = ()
    accept: str = ""
    encodings: str = ""
    headers: Sequence[tuple[bytes, bytes]] = ()
    subject: str = ""


class Answer(NamedTuple):
    """A whole response."""

    body: bytes
    content_type: str = TEXT
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = MappingProxyType({})


class StreamedAnswer(NamedTuple):
    """A body in pieces, which are made in threads. Its client may take any time to read them.

    At an empty piece the server checks that the client is still there.
    """

    pieces: Iterator[bytes]
    content_type: str = JSON
    status: HTTPStatus = HTTPStatus.OK
    headers: Mapping[str, str] = MappingProxyType({})


Respond = Callable[[Request], Awaitable[Answer | StreamedAnswer]]
"""Runs in the server's thread: what takes time belongs in_thread()."""


class AnswerThreads:
    """Starts threads with the rights of who makes this, not of who needs them."""

    def __init__(self) -> None:
        self._work: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        threading.Thread(target=self._start_all, name="ebpflb-answers", daemon=True).start()

    def start(self, work: Callable[[], None]) -> None:
        self._work.put(work)

    def stop(self) -> None:
        """Start no more. What has been started goes on."""
        self._work.put(None)

    def _start_all(self) -> None:
        while work := self._work.get():
            threading.Thread(target=work, name="ebpflb-answer", daemon=True).start()
            # Otherwise a stream whose client is gone would stay until there is other work.
            del work


answering: ContextVar[AnswerThreads] = ContextVar("answering")
"""Those of the server that runs."""


async def in_thread(work: Callable[..., Result], *given: object) -> Result:
    """The result of `work`. A process that ends does not wait for it."""
    loop = asyncio.get_running_loop()
    result: asyncio.Future[Result] = loop.create_future()

    def settle(how: Callable[[Any], None], what: object) -> None:
        if not result.done():
            how(what)

    def run() -> None:
        try:
            end = partial(settle, result.set_result, work(*given))
        except BaseException as error:  # noqa: BLE001  any error belongs to who awaits the result
            end = partial(settle, result.set_exception, error)
        # RuntimeError: the server has stopped meanwhile.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(end)

    answering.get().start(run)
    return await result
