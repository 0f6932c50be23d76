# SPDX-License-Identifier: Apache-2.0
"""What runs in a pod of the lab: a server that names its pod and the client's address.

Standard library only and started by path, so that a pod is one small process.
TCP and UDP on one port number, IPv4 and IPv6. A TCP connection stays open until the client closes.
Any other datagram is not answered: it may be the answer of another such server, and the two would
go on forever.

    line or datagram     answer
    (empty)              the pod's name; for load: one byte there, one packet back
    who                  JSON, see PodIdentity.describe
    echo TEXT            TEXT
    GET / HTTP/1.1       the same JSON; also /hostname, /clientip (address:port) and /healthz
    POST /echo HTTP/1.1  the body
"""

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import struct
import sys
from dataclasses import dataclass
from http import HTTPStatus

_MOST_BYTES = 65536
_IP_PKTINFO = 8
_IN_PKTINFO = struct.Struct("=I4s4s")
_IN6_PKTINFO = struct.Struct("=16sI")

Address = tuple[str, int]


def is_known(command: bytes) -> bool:
    return command in (b"", b"who") or command.partition(b" ")[0] == b"echo"


@dataclass(frozen=True, slots=True)
class PodIdentity:
    pod: str
    node: str

    def describe(self, protocol: str, client: Address, local: Address) -> str:
        """One line of JSON; client and local as the pod's socket sees them."""
        return json.dumps(
            {
                "pod": self.pod,
                "node": self.node,
                "protocol": protocol,
                "client_address": client[0],
                "client_port": client[1],
                "local_address": local[0],
                "local_port": local[1],
            }
        )

    def answer(self, command: bytes, protocol: str, client: Address, local: Address) -> bytes:
        word, _, text = command.partition(b" ")
        if not command:
            return self.pod.encode()
        if command == b"who":
            return self.describe(protocol, client, local).encode()
        return text if word == b"echo" else b"error: commands are: who, echo TEXT"


@dataclass(frozen=True, slots=True)
class EchoConnection:
    identity: PodIdentity
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    client: Address
    local: Address

    async def serve(self) -> None:
        """Answer until the client closes or the connection breaks."""
        with contextlib.suppress(OSError, EOFError, ValueError):
            await self._serve_lines()
        self.writer.close()
        with contextlib.suppress(OSError):
            await self.writer.wait_closed()

    async def _serve_lines(self) -> None:
        while line := await self.reader.readline():
            command = line.rstrip(b"\r\n")
            if b" HTTP/1." in command:
                if not await self._answer_http(command.decode("latin-1")):
                    return
            else:
                answer = self.identity.answer(command, "TCP", self.client, self.local)
                self.writer.write(answer + b"\n")
            await self.writer.drain()

    async def _answer_http(self, request: str) -> bool:
        """Answer one request; False when the connection must be closed after it."""
        method, path, version = request.split(" ", 2)
        headers = await self._read_headers()
        body = await self.reader.readexactly(int(headers.get("content-length", "0")))
        status, content = self._page(method, path.partition("?")[0], body)
        choice = headers.get("connection", "").lower()
        stays = choice != "close" and (version == "HTTP/1.1" or choice == "keep-alive")
        head = (
            f"HTTP/1.1 {status.value} {status.phrase}\r\n"
            f"Content-Length: {len(content)}\r\n"
            f"Connection: {'keep-alive' if stays else 'close'}\r\n\r\n"
        )
        self.writer.write(head.encode() + (b"" if method == "HEAD" else content))
        return stays

    async def _read_headers(self) -> dict[str, str]:
        headers = {}
        while line := (await self.reader.readline()).strip():
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return headers

    def _page(self, method: str, path: str, body: bytes) -> tuple[HTTPStatus, bytes]:
        if method == "POST" and path == "/echo":
            return HTTPStatus.OK, body
        host, port = self.client
        pages = {
            "/": self.identity.describe("TCP", self.client, self.local) + "\n",
            "/hostname": self.identity.pod,
            "/clientip": (f"[{host}]:{port}" if ":" in host else f"{host}:{port}"),
            "/healthz": "ok\n",
        }
        if method not in {"GET", "HEAD", "POST"} or path not in pages:
            return HTTPStatus.NOT_FOUND, b"not found\n"
        return HTTPStatus.OK, pages[path].encode()


class UdpServer:
    """A UDP socket of one family; an answer comes from the address that the client sent to."""

    def __init__(self, identity: PodIdentity, family: socket.AddressFamily, port: int) -> None:
        self._identity = identity
        self._port = port
        self.socket = socket.socket(family, socket.SOCK_DGRAM)
        self.socket.setblocking(False)
        if family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_RECVPKTINFO, 1)
        else:
            self.socket.setsockopt(socket.IPPROTO_IP, _IP_PKTINFO, 1)
        self.socket.bind(("", port))

    def serve_waiting(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while True:
                self._serve_one()

    def _serve_one(self) -> None:
        datagram, ancillary, _, peer = self.socket.recvmsg(_MOST_BYTES, 128)
        local, source = _destination(ancillary)
        command = datagram.rstrip(b"\r\n")
        if not is_known(command):
            return
        answer = self._identity.answer(command, "UDP", peer[:2], (local, self._port))
        with contextlib.suppress(OSError):
            self.socket.sendmsg([answer], source, 0, peer)


def _destination(
    ancillary: list[tuple[int, int, bytes]],
) -> tuple[str, list[tuple[int, int, bytes]]]:
    """The local address of a datagram, and the control message that answers from there."""
    for level, kind, content in ancillary:
        if (level, kind) == (socket.IPPROTO_IP, _IP_PKTINFO):
            _, _, address = _IN_PKTINFO.unpack_from(content)
            source = _IN_PKTINFO.pack(0, address, bytes(4))
            return socket.inet_ntop(socket.AF_INET, address), [(level, kind, source)]
        if (level, kind) == (socket.IPPROTO_IPV6, socket.IPV6_PKTINFO):
            address, ifindex = _IN6_PKTINFO.unpack_from(content)
            scope = ifindex if address.startswith(b"\xfe\x80") else 0
            source = _IN6_PKTINFO.pack(address, scope)
            return socket.inet_ntop(socket.AF_INET6, address), [(level, kind, source)]
    return "", []


async def serve(identity: PodIdentity, port: int) -> None:
    """Serve until SIGTERM or SIGINT."""
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    for family in (socket.AF_INET, socket.AF_INET6):
        udp = UdpServer(identity, family, port)
        loop.add_reader(udp.socket, udp.serve_waiting)

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        client, local = (writer.get_extra_info(end)[:2] for end in ("peername", "sockname"))
        await EchoConnection(identity, reader, writer, client, local).serve()

    await asyncio.start_server(accept, None, port, backlog=4096)
    await stop.wait()


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="echo", description=__doc__)
    parser.add_argument("--pod", required=True)
    parser.add_argument("--node", default="")
    parser.add_argument("--port", type=int, default=8080)
    chosen = parser.parse_args(arguments)
    asyncio.run(serve(PodIdentity(chosen.pod, chosen.node), chosen.port))


if __name__ == "__main__":
    main(sys.argv[1:])
