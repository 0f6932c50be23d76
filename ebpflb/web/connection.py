# SPDX-License-Identifier: Apache-2.0
"""One connection: one request, one response, each with a deadline."""

import asyncio
import logging
import ssl
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import suppress
from email.utils import formatdate
from http import HTTPStatus

import h11

from ebpflb.web.answers import Answer, Request, Respond, StreamedAnswer, answering, in_thread
from ebpflb.web.tls import subject_of

_log = logging.getLogger("ebpflb.http")

_REQUEST_SECONDS = 10.0
_RESPONSE_SECONDS = 30.0
# A client of TLS that waits for the end waits as long.
_CLOSING_SECONDS = 1.0
_LONGEST_HEADER = 16384
# How much of a request's body is read, and thrown away.
_MOST_IGNORED_BYTES = 1 << 20
PIECE_BYTES = 16384


class _Pieces:
    """Those of a stream, taken and ended in threads, one after the other."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._lock = threading.Lock()

    def take(self) -> bytes | None:
        """None after the last one."""
        with self._lock:
            return next(self._pieces, None)

    def close(self) -> None:
        """If they are made by a generator, it does what it has to do at its end."""
        with self._lock:
            try:
                if isinstance(self._pieces, Generator):
                    self._pieces.close()
            except Exception:  # noqa: BLE001  a bug in an answer costs this answer
                _log.exception("the end of an answer failed")


class Connection:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.transport.set_write_buffer_limits(PIECE_BYTES)
        self._reader = reader
        self._writer = writer
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=_LONGEST_HEADER)
        self._is_head = False
        encryption: ssl.SSLObject | None = writer.get_extra_info("ssl_object")
        self._is_encrypted = encryption is not None
        self._subject = subject_of(encryption.getpeercert()) if encryption else ""

    async def answer(self, respond: Respond, on_request: Callable[[], None]) -> None:
        """Answer the request. TimeoutError or another OSError if the client is late, or leaves."""
        try:
            async with asyncio.timeout(_REQUEST_SECONDS):
                request = await self._request()
        except h11.RemoteProtocolError as error:
            status = HTTPStatus(error.error_status_hint)
            text = f"{status.value} {status.phrase}"
            answer: Answer | StreamedAnswer = Answer(text.encode(), status=status)
        else:
            if request is None:
                return
            on_request()
            answer = await respond(request)
        if isinstance(answer, Answer):
            async with asyncio.timeout(_RESPONSE_SECONDS):
                await self._write_whole(answer)
        elif not await self._write_pieces(answer):
            return
        await self._let_client_close()

    async def _request(self) -> Request | None:
        """None if the client sent nothing."""
        while (event := self._http.next_event()) is h11.NEED_DATA:
            self._http.receive_data(await self._reader.read(PIECE_BYTES))
        if not isinstance(event, h11.Request):
            return None
        self._is_head = event.method == b"HEAD"
        if not event.http_version.startswith(b"1."):
            status = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
            raise h11.RemoteProtocolError("not HTTP/1", status)
        raw = [*event.headers]
        headers = [(name, value.decode("latin-1")) for name, value in raw]
        hosts = tuple(value for name, value in headers if name == b"host")
        accept, encodings = (
            ",".join(value for name, value in headers if name == wanted)
            for wanted in (b"accept", b"accept-encoding")
        )
        method, target = event.method.decode(), event.target.decode()
        return Request(method, target, hosts, accept, encodings, raw, self._subject)

    async def _write_whole(self, answer: Answer) -> None:
        self._begin(answer, **{"Content-Length": str(len(answer.body))})
        for begin in range(0, 0 if self._is_head else len(answer.body), PIECE_BYTES):
            self._send(h11.Data(data=answer.body[begin : begin + PIECE_BYTES]))
            await self._have_room()
        self._send(h11.EndOfMessage())

    async def _write_pieces(self, answer: StreamedAnswer) -> bool:
        """Whether the client stayed to the end."""
        self._begin(answer)
        pieces = _Pieces(answer.pieces)
        try:
            while (piece := await in_thread(pieces.take)) is not None:
                if piece:
                    self._send(h11.Data(data=piece))
                    await self._have_room()
                elif self._reader.at_eof() or self._reader.exception():
                    return False
        finally:
            # Errors refer to frames that refer to errors: without this they would last for long.
            answering.get().start(pieces.close)
        self._send(h11.EndOfMessage())
        return True

    def _begin(self, answer: Answer | StreamedAnswer, **more: str) -> None:
        headers = {
            "Date": formatdate(usegmt=True),
            "Content-Type": answer.content_type,
            "X-Content-Type-Options": "nosniff",
            "Connection": "close",
            **more,
            **answer.headers,
        }
        code, reason = answer.status, answer.status.phrase
        self._send(h11.Response(status_code=code, headers=[*headers.items()], reason=reason))

    def _send(self, event: h11.Response | h11.Data | h11.EndOfMessage) -> None:
        self._writer.write(self._http.send(event) or b"")

    async def _have_room(self) -> None:
        """Wait until more can be sent. OSError if the client has left."""
        await self._writer.drain()
        if self._is_encrypted:
            # drain() learns only in the loop's next round that the connection below TLS is lost.
            await asyncio.sleep(0)

    async def _let_client_close(self) -> None:
        """Closing first, while more of the request is on its way, would lose the response."""
        if self._is_encrypted:
            # TLS cannot close one direction alone: who knows the length of the answer closes first.
            with suppress(TimeoutError):
                await self._ignore_rest(_CLOSING_SECONDS)
            self._writer.close()
        else:
            self._writer.write_eof()
        await self._ignore_rest(_REQUEST_SECONDS)

    async def _ignore_rest(self, seconds: float) -> None:
        """Until the client closes its end. TimeoutError."""
        ignored = 0
        async with asyncio.timeout(seconds):
            while ignored < _MOST_IGNORED_BYTES and (piece := await self._reader.read(PIECE_BYTES)):
                ignored += len(piece)
