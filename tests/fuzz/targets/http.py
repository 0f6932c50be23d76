# SPDX-License-Identifier: Apache-2.0
"""A client that sends arbitrary bytes to a server, and expects HTTP."""

import http.client
import io
import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from typing import NamedTuple

_REFUSALS = (
    *(HTTPStatus.BAD_REQUEST, HTTPStatus.FORBIDDEN, HTTPStatus.NOT_FOUND),
    *(HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE),
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED,
    # h11's error for an unknown transfer coding.
    HTTPStatus.NOT_IMPLEMENTED,
)
_PIECE = 1 << 16


class Reply(NamedTuple):
    status: int
    body: bytes


class _Received(io.BytesIO):
    """Looks like a socket to http.client."""

    def makefile(self, *_: object) -> "_Received":
        return self


def exchange(client: socket.socket, given: bytes) -> Reply | None:
    """Of a connected socket, which is closed. None if the server has not responded.

    AssertionError if it responds with anything but HTTP, or with a server error.
    """
    received = b""
    with client:
        client.sendall(given)
        client.shutdown(socket.SHUT_WR)
        while piece := client.recv(_PIECE):
            received += piece
    if not received:
        return None
    method = given.partition(b" ")[0].decode(errors="replace")
    answer = http.client.HTTPResponse(_Received(received), method=method)  # type: ignore[arg-type]
    answer.begin()
    assert answer.status == HTTPStatus.OK or answer.status in _REFUSALS, answer.status
    try:
        return Reply(answer.status, answer.read())
    except http.client.IncompleteRead as error:
        assert answer.chunked, "only a stream may end with its client"
        return Reply(answer.status, error.partial)


@contextmanager
def no_complaints() -> Iterator[None]:
    """Raise what servers log as a warning or an error inside the block."""
    heard = _Heard(logging.WARNING)
    log = logging.getLogger("ebpflb")
    log.addHandler(heard)
    try:
        yield
    finally:
        log.removeHandler(heard)
    assert not heard.records, "\n".join(map(logging.Formatter().format, heard.records))


class _Heard(logging.Handler):
    def __init__(self, level: int) -> None:
        super().__init__(level)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)
