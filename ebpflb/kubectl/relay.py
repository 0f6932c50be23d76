# SPDX-License-Identifier: Apache-2.0
"""The relay, an API of the cluster: what people may see who have no way into agents' pods."""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from types import MappingProxyType
from typing import Generic, NamedTuple, NoReturn, TypeVar
from urllib.parse import quote

import msgspec

from ebpflb.cli.table import visible
from ebpflb.errors import ClusterError, ConfigError
from ebpflb.kubectl.access import JSON, NONSENSE, Access, ApiRefusalError, EndlessError, Query
from ebpflb.words.observe import API_VERSION, GROUP, KINDS, PATH

Found = TypeVar("Found")
Answer = TypeVar("Answer")

_LONGEST_REASON = 200


class RelayQuestion(NamedTuple):
    """resource: one of KINDS. namespace: of the Services; empty for all.

    parameters: empty ones are left out.
    """

    resource: str
    namespace: str
    parameters: Mapping[str, str] = MappingProxyType({})


class RelayAnswer(NamedTuple, Generic[Found]):
    """failures: what went wrong -> the nodes."""

    found: Found
    failures: Mapping[str, Sequence[str]]


class UselessRelayError(ClusterError):
    """The relay does not answer this user, or not in a way that can be read."""


class NoRelayError(UselessRelayError):
    """The cluster has none."""


class _AnsweredList(msgspec.Struct, rename="camel"):
    """items: of the kind."""

    api_version: str
    kind: str
    items: msgspec.Raw
    failures: dict[str, list[str]] = {}


_decode = msgspec.json.Decoder(_AnsweredList).decode


@dataclass
class Relay:
    """Thread-safe. is_only: whether nothing else may be asked. is_missing: once that is known."""

    access: Access
    is_only: bool = False
    is_missing: bool = False

    def ask(self, question: RelayQuestion, read: Callable[[bytes], Found]) -> RelayAnswer[Found]:
        """`read`: decodes the items; may raise NONSENSE. ConfigError, ClusterError."""
        if self.is_missing:
            raise _missing()
        raw = self._answer(question, self.access.read)
        try:
            answer = _decode(raw)
            kind = f"{KINDS[question.resource]}List"
            if (answer.api_version, answer.kind) != (API_VERSION, kind):
                raise ValueError(f"no {kind} of {API_VERSION}")
            return RelayAnswer(read(bytes(answer.items)), answer.failures)
        except NONSENSE as error:
            why = " ".join(str(error).split())[:_LONGEST_REASON] or type(error).__name__
            raise _unreadable(why) from error

    def follow(self, question: RelayQuestion) -> Generator[str, None, None]:
        """The lines of a watch as they arrive, and an empty one now and then.

        Asks at once. Errors until the watch begins are those of ask(); after that, ClusterError.
        Asks also where there was no relay, because it may be there again.
        """
        parameters = {**question.parameters, "watch": "true"}
        lines = self._answer(question._replace(parameters=parameters), self.access.lines)
        self.is_missing = False
        return lines

    def _answer(self, question: RelayQuestion, read: Callable[[str, Query, str], Answer]) -> Answer:
        resource, namespace, parameters = question
        place = f"namespaces/{quote(namespace, safe='')}/" if namespace else ""
        try:
            return read(f"{PATH}/{place}{resource}", list(parameters.items()), JSON)
        except EndlessError as error:
            raise _unreadable("its answer does not end") from error
        except ApiRefusalError as error:
            self._refuse(error)

    def _refuse(self, error: ApiRefusalError) -> NoReturn:
        match error.status:
            case HTTPStatus.NOT_FOUND:
                self.is_missing = True
                raise _missing() from error
            case HTTPStatus.FORBIDDEN:
                # The API server says so too of paths that it does not know.
                self.is_missing = self._is_unknown()
                raise (_missing() if self.is_missing else UselessRelayError(str(error))) from error
            case HTTPStatus.SERVICE_UNAVAILABLE:
                text = f"no pod of the relay is ready: {error.message}"
                raise UselessRelayError(text) from error
            case HTTPStatus.BAD_REQUEST:
                raise ConfigError(error.message) from error
            case HTTPStatus.UNPROCESSABLE_ENTITY:
                raise ClusterError(error.message) from error
            case HTTPStatus.TOO_MANY_REQUESTS:
                text = f"the relay is asked too much, try again later: {error.message}"
                raise ClusterError(text) from error
            case HTTPStatus.GATEWAY_TIMEOUT:
                raise ClusterError(f"the relay takes too long: {error.message}") from error
        raise error

    def _is_unknown(self) -> bool:
        """Whether the API server has no such group, which everybody may ask."""
        try:
            self.access.read(f"/apis/{GROUP}", (), JSON)
        except ApiRefusalError as error:
            return error.status == HTTPStatus.NOT_FOUND
        return False


def _missing() -> NoRelayError:
    return NoRelayError(f"no relay in this cluster: its API server knows no {API_VERSION}")


def _unreadable(why: str) -> UselessRelayError:
    return UselessRelayError(f"the relay answers what this version cannot read ({visible(why)})")
