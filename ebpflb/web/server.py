# SPDX-License-Identifier: Apache-2.0
"""The server: one thread for all connections, and limits that no client can exceed.

If there are too many connections, or too few file descriptors, the oldest connection goes, and
first of all one whose request is not complete.
"""

import asyncio
import errno
import logging
import os
import socket
import ssl
import threading
from asyncio import sslproto
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from ebpflb.log import fields
from ebpflb.web.answers import AnswerThreads, Respond, answering, in_thread
from ebpflb.web.connection import PIECE_BYTES, Connection

_log = logging.getLogger("ebpflb.http")

BACKLOG = 1024
MOST_CONNECTIONS = 256
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_PAUSE_SECONDS = 0.1
_HANDSHAKE_SECONDS = 10.0
# Each connection over TLS has a buffer of this size, which asyncio makes 256 KiB.
_TLS_BUFFER = 2 * PIECE_BYTES
# As many connections are possible if the process has no descriptor left.
_RESERVED = 16


class Clients:
    """The connections that share a limit. For the server's thread."""

    def __init__(self, most: int = MOST_CONNECTIONS) -> None:
        self._most = most
        # Oldest first.
        self._incomplete: dict[asyncio.Task[None], None] = {}
        self._answered: dict[asyncio.Task[None], None] = {}

    def __len__(self) -> int:
        return len(self._incomplete) + len(self._answered)

    @property
    def answered(self) -> int:
        """How many have sent their request."""
        return len(self._answered)

    def add(self, client: asyncio.Task[None]) -> None:
        """If there is no room, the oldest one has to go."""
        if len(self) >= self._most:
            self.drop_oldest()
        self._incomplete[client] = None

    def note_request(self) -> None:
        """The request of the task that calls this is complete."""
        client = asyncio.current_task()
        if client in self._incomplete:
            del self._incomplete[client]
            self._answered[client] = None

    def remove(self, client: asyncio.Task[None]) -> None:
        self._incomplete.pop(client, None)
        self._answered.pop(client, None)

    def drop_oldest(self) -> asyncio.Task[None] | None:
        """The one that ends now, if there is any."""
        client = next(iter(self._incomplete or self._answered), None)
        if client:
            self.remove(client)
            client.cancel()
        return client


Encryption = Callable[[], ssl.SSLContext]
"""The context for a new connection, made in a thread. OSError if there is none."""


class _Listening(NamedTuple):
    respond: Respond
    clients: Clients
    encryption: Encryption | None


class HttpServer:
    """Answers at any number of sockets until `stop()`. Call its methods in other threads."""

    def __init__(self, give_up: Callable[[], None] = lambda: None) -> None:
        """`give_up`: the first thing that the server's thread does, which reads what clients send.

        Answers that take time are made with the rights of the thread that calls this.
        """
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)
        self._loop = self._runner.get_loop()
        self._listening: dict[socket.socket, _Listening] = {}
        # Those with clients to accept, each once; None to stop.
        self._ready: asyncio.Queue[socket.socket | None] = asyncio.Queue()
        # Descriptors given up to accept connections if no others are free.
        self._reserve: list[int] = []
        self._keep_reserve()
        self._give_up = give_up
        self._answers = AnswerThreads()
        self._thread = threading.Thread(target=self._run, name="ebpflb-http", daemon=True)
        self._thread.start()

    def listen(
        self,
        listening: socket.socket,
        respond: Respond,
        clients: Clients,
        encryption: Encryption | None = None,
    ) -> None:
        """Answer at this socket until `close()`."""
        listening.setblocking(False)
        # A connection inherits it: this is what a client may send before it is read.
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE_BYTES)
        what = _Listening(respond, clients, encryption)
        self._loop.call_soon_threadsafe(self._begin, listening, what)

    def close(self, listening: socket.socket) -> None:
        """Close a listening socket, whose address is free afterwards.

        If it was the last one of its clients, they go too.
        """
        asyncio.run_coroutine_threadsafe(self._end(listening), self._loop).result()

    def stop(self) -> None:
        """Close everything and end the thread, without waiting for answers in progress."""
        self._loop.call_soon_threadsafe(self._ready.put_nowait, None)
        self._thread.join()
        self._answers.stop()

    def _run(self) -> None:
        self._give_up()
        with self._runner:
            self._runner.run(self._accept_all())

    def _begin(self, listening: socket.socket, what: _Listening) -> None:
        self._listening[listening] = what
        self._loop.add_reader(listening, self._note_ready, listening)

    def _note_ready(self, listening: socket.socket) -> None:
        self._loop.remove_reader(listening)
        self._ready.put_nowait(listening)

    async def _end(self, listening: socket.socket) -> None:
        clients = self._listening.pop(listening).clients
        self._loop.remove_reader(listening)
        listening.close()
        if all(each.clients is not clients for each in self._listening.values()):
            while clients.drop_oldest():
                pass

    async def _accept_all(self) -> None:
        """Accept one connection for each round of the loop, so that those before it are read."""
        answering.set(self._answers)
        while listening := await self._ready.get():
            if listening in self._listening:
                try:
                    self._accept(listening)
                except (BlockingIOError, ConnectionError):
                    pass
                except OSError as error:
                    _log.debug("cannot accept a connection: %s", error)
                    await self._make_room(error)
            # It may have been closed meanwhile.
            if what := self._listening.get(listening):
                self._begin(listening, what)
            await asyncio.sleep(0)
        for listening in list(self._listening):
            await self._end(listening)
        for each in self._reserve:
            os.close(each)

    def _accept(self, listening: socket.socket) -> None:
        what = self._listening[listening]
        accepted, address = listening.accept()
        accepted.setblocking(False)
        client = self._loop.create_task(_serve(accepted, address, what))
        client.add_done_callback(partial(self._ended, accepted, what.clients))
        what.clients.add(client)

    async def _make_room(self, error: OSError) -> None:
        """Free a descriptor if that is what is missing; otherwise wait a moment."""
        if error.errno in _NO_DESCRIPTOR:
            if self._reserve:
                return os.close(self._reserve.pop())
            every = (each.clients for each in self._listening.values())
            if oldest := max(every, key=len).drop_oldest():
                await asyncio.wait([oldest])
                return None
        return await asyncio.sleep(_PAUSE_SECONDS)

    def _ended(self, accepted: socket.socket, clients: Clients, client: asyncio.Task[None]) -> None:
        clients.remove(client)
        accepted.close()
        self._keep_reserve()

    def _keep_reserve(self) -> None:
        with suppress(OSError):
            while len(self._reserve) < _RESERVED:
                self._reserve.append(os.open(os.devnull, os.O_RDONLY))


async def _serve(accepted: socket.socket, address: Any, what: _Listening) -> None:
    writer: asyncio.StreamWriter | None = None
    try:
        reader, writer = await _opened(accepted, what.encryption)
        await Connection(reader, writer).answer(what.respond, what.clients.note_request)
    except OSError as error:
        _log.debug("a connection broke off: %r", error, extra=fields(client=address))
    except Exception:  # noqa: BLE001  a bug in an answer costs this answer
        _log.exception("an HTTP request failed", extra=fields(client=address))
    finally:
        if writer:
            writer.transport.abort()


async def _opened(
    accepted: socket.socket, encryption: Encryption | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    if not encryption:
        return await asyncio.open_connection(sock=accepted, limit=PIECE_BYTES)
    context = await in_thread(encryption)
    sslproto.SSLProtocol.max_size = _TLS_BUFFER
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(PIECE_BYTES, loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    transport, _ = await loop.connect_accepted_socket(
        lambda: protocol, accepted, ssl=context, ssl_handshake_timeout=_HANDSHAKE_SECONDS
    )
    return reader, asyncio.StreamWriter(transport, protocol, reader, loop)
