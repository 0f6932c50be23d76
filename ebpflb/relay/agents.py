# SPDX-License-Identifier: Apache-2.0
"""Asks agents over mutual TLS what the plugin asks by executing commands in their pods."""

import ssl
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any
from urllib.parse import urlencode

import msgspec

from ebpflb.cli.explain import question_of, told
from ebpflb.cli.explain_words import AskedConnection
from ebpflb.dataplane.explain.question import Explanation
from ebpflb.errors import ClusterError
from ebpflb.from_json import JsonError, from_json
from ebpflb.kubectl.agents import RemoteAgent
from ebpflb.kubectl.asking import NO_AGENT, AgentAnswer, AgentQuestion
from ebpflb.model.service import ServiceName
from ebpflb.relay.exchange import Exchange

_MOST_BYTES = 16 << 20


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
                return self._explanation(agent, question)
            return self._asked(agent, question.command, question.options)
        except (OSError, ClusterError) as error:
            return AgentAnswer(agent, None, error=_reason(error))

    def _explanation(self, agent: RemoteAgent, question: AgentQuestion) -> AgentAnswer:
        source, target = question.arguments
        words = AskedConnection(source, target, at=str(question.options.get("at", "")))
        name = words.client.name
        asked = question_of(words, self.addresses_of(name) if name else ())
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
        content = bytearray()
        with Exchange(agent.address, self.port, self.encryption()) as exchange:
            status = exchange.ask(f"/v1/{command}?{urlencode(given)}", deadline)
            for piece in exchange.pieces(deadline):
                content += piece
                if len(content) > _MOST_BYTES:
                    raise ClusterError(f"answers with more than {_MOST_BYTES >> 20} MiB")
        text = content.decode(errors="replace")
        if status == HTTPStatus.OK:
            return AgentAnswer(agent, 0, text)
        return AgentAnswer(agent, 1, stderr=_error_of(text, status))


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
        case OSError():
            found = f"cannot be reached: {error.strerror or error}"
        case _:
            found = str(error) or type(error).__name__
    return found
