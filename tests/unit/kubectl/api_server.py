# SPDX-License-Identifier: Apache-2.0
"""An API server that knows pods and nodes, and executes commands: on this machine, or with given
output.
"""

import base64
import hashlib
import json
import os
import select
import socket
import struct
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_FRAME = 32 << 10
_OUTPUTS = (1, 2)
_ERROR = 3
DAEMON_SETS = "/apis/apps/v1/daemonsets"


@dataclass(frozen=True, slots=True)
class Output:
    """What a command prints; status: None for one that cannot be started."""

    stdout: str = ""
    stderr: str = ""
    status: int | None = 0


Command = Callable[[str, Sequence[str]], Output]
# Pieces of an answer that goes on, by its query; None: nothing for now. OSError breaks off.
Stream = Callable[[Mapping[str, list[str]]], Iterator[bytes | None]]


@dataclass
class Objects:
    """lists, texts, streams: by path. selected: by field selector. forbidden: path -> why.

    command: None executes on this machine. executed: what was. page: most objects of an answer.
    refused: path -> status and message. requested: paths with their queries.
    """

    lists: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {DAEMON_SETS: [daemon_set()]}
    )
    texts: dict[str, str] = field(default_factory=dict)
    streams: dict[str, Stream] = field(default_factory=dict)
    forbidden: dict[str, str] = field(default_factory=dict)
    selected: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    command: Command | None = None
    executed: list[list[str]] = field(default_factory=list)
    page: int = 500
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)
    requested: list[str] = field(default_factory=list)


def daemon_set(namespace: str = "kube-system", uid: str = "uid") -> dict[str, Any]:
    """That of the agents."""
    return {
        "metadata": {"namespace": namespace, "name": "ebpflb", "uid": uid},
        "spec": {
            "selector": {"matchLabels": {"app.kubernetes.io/component": "agent"}},
            "template": {"spec": {"hostNetwork": True, "containers": [{"name": "ebpflb"}]}},
        },
    }


def pod(node: str, name: str = "", *, ready: bool = True, **more: Any) -> dict[str, Any]:
    """The pod of an agent. more: fields of its metadata."""
    condition = {"type": "Ready", "status": "True" if ready else "False"}
    return {
        "metadata": {
            "namespace": "kube-system",
            "name": name or f"ebpflb-{node}",
            "ownerReferences": [{"kind": "DaemonSet", "uid": "uid", "controller": True}],
            **more,
        },
        "spec": {
            "hostNetwork": True,
            "nodeName": node,
            "containers": [{"name": "ebpflb", "image": "example.com/ebpflb:0.1.0"}],
        },
        "status": {"phase": "Running", "conditions": [condition]},
    }


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}}


@contextmanager
def served(objects: Objects) -> Iterator[str]:
    """The address of a server with these objects."""
    server = _Server()
    server.objects = objects
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def write_kubeconfig(path: Path, url: str, namespace: str = "") -> Path:
    """One user with a token, one context."""
    context = {"cluster": "c", "user": "u", **({"namespace": namespace} if namespace else {})}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [{"name": "u", "user": {"token": "t0k3n"}}],
        "contexts": [{"name": "main", "context": context}],
        "current-context": "main",
    }
    path.write_text(json.dumps(document))
    return path


class _Server(ThreadingHTTPServer):
    # Closing waits for all conversations.
    daemon_threads = False
    # All nodes are asked at the same time.
    request_queue_size = 1024
    objects: Objects

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Conversation)
        self._connections: set[socket.socket] = set()
        self.is_closing = False

    def finish_request(self, request: Any, client_address: Any) -> None:
        self._connections.add(request)
        super().finish_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._connections.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """End conversations, too: clients keep their connections for more requests."""
        self.is_closing = True
        for each in list(self._connections):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        super().server_close()


class _Conversation(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        assert isinstance(self.server, _Server)
        objects = self.server.objects
        objects.requested.append(self.path)
        if url.path in objects.refused:
            status, message = objects.refused[url.path]
            self._send(status, {"kind": "Status", "code": status, "message": message})
        elif url.path in objects.forbidden:
            self._send(403, {"message": objects.forbidden[url.path]})
        elif url.path.endswith("/exec"):
            self._execute(objects, url.path.split("/")[-2], parse_qs(url.query))
        elif url.path in objects.streams and "watch=true" in url.query:
            with suppress(OSError):
                self._stream(objects.streams[url.path](parse_qs(url.query)))
        elif url.path in objects.texts:
            self._send(200, objects.texts[url.path])
        elif selector := parse_qs(url.query).get("fieldSelector"):
            self._send(200, {"items": objects.selected.get(selector[0], [])})
        elif url.path in objects.lists:
            self._send(200, _page(objects, url.path, parse_qs(url.query)))
        else:
            self._send(404, {"message": f"{url.path} not found"})

    def log_message(self, *_: object) -> None:
        pass

    def _send(self, status: int, content: Mapping[str, Any] | str) -> None:
        raw = (content if isinstance(content, str) else json.dumps(content)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, pieces: Iterator[bytes | None]) -> None:
        """In chunks, until its end, or until the client or the server goes."""
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        assert isinstance(self.server, _Server)
        for piece in pieces:
            is_left = select.select([self.connection], (), (), 0)[0]
            if self.server.is_closing or is_left:
                return
            if piece:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def _execute(self, objects: Objects, name: str, query: Mapping[str, list[str]]) -> None:
        key = self.headers["Sec-WebSocket-Key"].encode()
        self.send_response(101)
        self.send_header("Upgrade", "websocket")
        self.send_header("Connection", "Upgrade")
        accepted = base64.b64encode(hashlib.sha1(key + _GUID).digest())  # noqa: S324  as the protocol says
        self.send_header("Sec-WebSocket-Accept", accepted.decode())
        self.send_header("Sec-WebSocket-Protocol", self.headers["Sec-WebSocket-Protocol"])
        self.end_headers()
        self.close_connection = True
        argv = query["command"]
        objects.executed.append(argv)
        with suppress(OSError):
            if objects.command is None:
                self._run(argv)
            else:
                # Without the shell and its script around the command.
                self._say(objects.command(name, argv[4:]))

    def _say(self, output: Output) -> None:
        for channel, text in zip(_OUTPUTS, (output.stdout, output.stderr), strict=True):
            raw = text.encode()
            for begin in range(0, len(raw), _FRAME):
                self._frame(channel, raw[begin : begin + _FRAME])
        self._frame(_ERROR, _status(output.status))

    def _run(self, argv: list[str]) -> None:
        """For real; standard input ends with the connection, as kubelet has it."""
        with subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert process.stdin
            assert process.stdout
            assert process.stderr
            watch = threading.Thread(target=self._close_at_end, args=(process.stdin,))
            watch.start()
            while piece := os.read(process.stdout.fileno(), _FRAME):
                self._frame(1, piece)
            self._frame(2, process.stderr.read())
            self._frame(_ERROR, _status(process.wait()))
            self.connection.shutdown(2)
            watch.join()

    def _close_at_end(self, stdin: Any) -> None:
        with suppress(OSError):
            while self.rfile.read1(100):
                pass
        with suppress(OSError):
            stdin.close()

    def _frame(self, channel: int, content: bytes) -> None:
        payload = bytes([channel]) + content
        size = len(payload)
        short = 126
        head = (
            struct.pack("!BB", 0x82, size) if size < short else struct.pack("!BBH", 0x82, 126, size)
        )
        self.wfile.write(head + payload)


def _status(status: int | None) -> bytes:
    if status == 0:
        return b'{"status": "Success"}'
    if status is None:
        return b'{"status": "Failure", "message": "exec failed:\\n no such file"}'
    cause = {"reason": "ExitCode", "message": str(status)}
    found = {"status": "Failure", "reason": "NonZeroExitCode", "details": {"causes": [cause]}}
    return json.dumps(found).encode()


def _page(objects: Objects, path: str, query: Mapping[str, list[str]]) -> dict[str, Any]:
    items = objects.lists[path]
    begin = int(query.get("continue", ["0"])[0])
    end = begin + min(objects.page, int(query["limit"][0]))
    more = str(end) if end < len(items) else ""
    return {"metadata": {"continue": more}, "items": items[begin:end]}
