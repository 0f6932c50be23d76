# SPDX-License-Identifier: Apache-2.0
"""Asks agents over mutual TLS what the plugin asks by executing commands in their pods."""

import http.client
import io
import socket
import ssl
import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec

from ebpflb.cli.explain import question_of, told
from ebpflb.cli.explain_words import parse_source, parse_target
from ebpflb.dataplane.explain.question import Explanation
from ebpflb.errors import ClusterError
from ebpflb.from_json import JsonError, from_json
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT, AgentAnswer, AgentQuestion
from ebpflb.model.service import ServiceName
from ebpflb.words.observe import AGENT

_CONNECT_SECONDS = 5.0
_MOST_BYTES = 16 << 20
_PIECE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class TlsAgents:
    """port: of all agents. encryption: the context; OSError. seconds: of a whole answer.

    addresses_of: a pod's addresses by its name. ClusterError.
    """

    port: int
    encryption: Callable[[], ssl.SSLContext]
    addresses_of: Callable[[ServiceName], list[str]]
    seconds: float

    def answer(self, agent: RemoteAgent, question: AgentQuestion) -> AgentAnswer:
        if not agent.address:
            return AgentAnswer(agent, None, error=NO_AGENT)
        try:
            if question.command == "explain":
                return self._explanation(agent, *question.arguments)
            return self._asked(agent, question.command, question.options)
        except (OSError, http.client.HTTPException, ClusterError) as error:
            return AgentAnswer(agent, None, error=_reason(error))

    def _explanation(self, agent: RemoteAgent, source: str, target: str) -> AgentAnswer:
        client = parse_source(source)
        addresses = self.addresses_of(client.name) if client.name else ()
        asked = question_of(client, parse_target(target), addresses)
        parameters: Mapping[str, Any] = msgspec.to_builtins(asked)
        answer = self._asked(
            agent, "explain", {name: str(value) for name, value in parameters.items()}
        )
        if answer.status:
            return answer
        try:
            found = msgspec.json.decode(answer.stdout, type=Explanation)
        except ValueError as error:
            raise ClusterError(f"an answer that this version cannot read ({error})") from error
        return AgentAnswer(agent, 0, msgspec.json.encode(told(found)).decode())

    def _asked(
        self, agent: RemoteAgent, command: str, options: Mapping[str, str | bool]
    ) -> AgentAnswer:
        deadline = time.monotonic() + self.seconds
        given = {name: _text(value) for name, value in options.items() if value}
        connection = _AgentConnection(agent.address, self.port, self.encryption(), deadline)
        with closing(connection):
            connection.request("GET", f"/v1/{command}?{urlencode(given)}", headers={"Host": AGENT})
            response = connection.getresponse()
            content = bytearray()
            while piece := response.read1(_PIECE_BYTES):
                content += piece
                if len(content) > _MOST_BYTES:
                    raise ClusterError(f"answers with more than {_MOST_BYTES >> 20} MiB")
            if response.length:
                # read1() does not complain about what is missing.
                raise http.client.IncompleteRead(bytes(content), response.length)
        text = content.decode(errors="replace")
        if response.status == HTTPStatus.OK:
            return AgentAnswer(agent, 0, text)
        return AgentAnswer(agent, 1, stderr=_error_of(text, response.status))


class _AgentConnection(http.client.HTTPSConnection):
    """deadline: of the answer, by a monotonic clock; TimeoutError, however slowly it comes."""

    def __init__(self, address: str, port: int, context: ssl.SSLContext, deadline: float) -> None:
        super().__init__(address, port, timeout=_CONNECT_SECONDS, context=context)
        self._encryption = context
        made: Any = partial(_Response, deadline)
        self.response_class = made

    def connect(self) -> None:
        """The certificate has the name of agents, whatever their address."""
        plain = socket.create_connection((self.host, self.port), _CONNECT_SECONDS)
        self.sock = self._encryption.wrap_socket(plain, server_hostname=AGENT)


class _Response(http.client.HTTPResponse):
    def __init__(self, deadline: float, connection: socket.socket, *given: Any, **more: Any):
        super().__init__(connection, *given, **more)
        self.fp.close()
        self.fp = io.BufferedReader(_UntilDeadline(connection, deadline))


class _UntilDeadline(io.RawIOBase):
    """A time limit of the socket alone would begin anew with each byte of a header."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection = connection
        # Keeps the socket open until it is closed.
        self._raw = connection.makefile("rb", buffering=0)
        self._deadline = deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int | None:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def _text(value: str | bool) -> str:
    return "true" if value is True else str(value)


def _error_of(text: str, status: int) -> str:
    try:
        return str(from_json(text)["error"])
    except (JsonError, LookupError, TypeError):
        return f"the agent answers {status}"


def _reason(error: Exception) -> str:
    """Without the address of the node."""
    match error:
        case TimeoutError():
            found = "does not answer in time"
        case ssl.SSLCertVerificationError():
            found = f"has a certificate that is not trusted: {error.verify_message}"
        case ConnectionResetError() | BrokenPipeError() | ssl.SSLEOFError():
            # In TLS 1.3 a client learns only then that it is refused.
            found = (
                "ends the connection without an answer: maybe it refuses the relay's certificate"
            )
        case ssl.SSLError():
            found = f"refuses the relay's certificate, or speaks no TLS: {error.reason}"
        case http.client.IncompleteRead():
            found = "breaks off in the middle of its answer"
        case OSError():
            found = f"cannot be reached: {error.strerror or error}"
        case _:
            found = str(error) or type(error).__name__
    return found
