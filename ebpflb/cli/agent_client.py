# SPDX-License-Identifier: Apache-2.0
"""Queries to this node's agent, through its query socket and its HTTP ports."""

import contextlib
import http.client
import os
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import click
from msgspec import ValidationError, convert

from ebpflb.cli.table import visible
from ebpflb.config.options import METRICS_BIND_ADDRESS, QUERY_SOCKET
from ebpflb.config.settings import setting
from ebpflb.config.values import parse_bind_address
from ebpflb.errors import QueryError
from ebpflb.from_json import from_json
from ebpflb.model.agent_report import AgentReport
from ebpflb.model.pod import names_by_address

_ANSWER_SECONDS = 10.0
# An address may belong to another pod by then.
_NAMES_GOOD_SECONDS = 30.0

query_socket_option: Callable[[Any], Any] = click.option(
    "--query-socket",
    metavar="PATH",
    help=f"The agent's query socket, as given to `ebpflb run`.  [{QUERY_SOCKET}]",
)
metrics_address_option: Callable[[Any], Any] = click.option(
    "--metrics-bind-address",
    metavar="IP:PORT",
    help=f"The agent's metrics address, as given to `ebpflb run`.  [{METRICS_BIND_ADDRESS}]",
)


class UnanswerableError(QueryError):
    """The agent has understood the query, which has no answer."""


def query_socket(flag: str | None) -> Path:
    """The path by flag or environment. QueryError when it is set to none."""
    path: Path | None = setting("query-socket", flag, os.environ)
    if path is None:
        raise QueryError("no query socket: set --query-socket here and for `ebpflb run`")
    return path


def ask(path: Path, *where: str, **parameters: str) -> Any:
    """The agent's answer to one query, decoded from JSON. QueryError."""
    return from_json(b"".join(stream(path, where, parameters)))


def stream(path: Path, where: tuple[str, ...], parameters: Mapping[str, str]) -> Iterator[bytes]:
    """The lines of an answer as they arrive. QueryError, also if the agent stops meanwhile.

    `where`: the parts of the path after /v1.
    """
    with contextlib.closing(_Connection(path)) as connection:
        target = "/".join(["/v1", *(quote(part, safe="") for part in where)])
        with _explained(path):
            connection.request("GET", f"{target}?{urlencode(parameters)}" if parameters else target)
            answer = connection.getresponse()
        if answer.status == HTTPStatus.UNPROCESSABLE_ENTITY:
            raise UnanswerableError(_reason(answer))
        if answer.status != HTTPStatus.OK:
            raise QueryError(_reason(answer))
        connection.wait_for_ever()
        with _explained(path):
            yield from iter(answer.readline, b"")
        if "follow" in parameters:
            raise QueryError(f"{path}: the agent has stopped")


class NamesOfPods:
    """Asks the agent when there are addresses that it was not asked about, and now and then."""

    def __init__(self, flag: str | None, clock: Callable[[], float] = time.monotonic) -> None:
        """`flag`: the path of the query socket, if given; `clock`: seconds."""
        self._path = setting("query-socket", flag, os.environ)
        self._clock = clock
        self._names: dict[str, str] = {}
        self._workloads: dict[str, str] = {}
        self._asked: set[str] = set()
        self._asked_at = 0.0

    def of(self, addresses: Collection[str]) -> Mapping[str, str]:
        """NAMESPACE/NAME by address, empty if several pods have it.

        A pod that is gone keeps its name. Without an agent there are none.
        """
        now = self._clock()
        if self._path and (
            not self._asked.issuperset(addresses) or now - self._asked_at > _NAMES_GOOD_SECONDS
        ):
            self._asked, self._asked_at = set(addresses), now
            try:
                answer = ask(self._path, "names")
                self._names |= by_address(answer)
                self._workloads |= answer["workloads"]
            except (QueryError, ValueError, TypeError, KeyError, AttributeError):
                # Addresses alone will do.
                self._path = None
        return self._names

    def workload(self, pod: str) -> str:
        """KIND/NAME of the controller of a pod of this node, by the last answer; "" if unknown."""
        return self._workloads.get(pod, "")


def by_address(answer: Mapping[str, Any]) -> Mapping[str, str]:
    """From /v1/names: see names_by_address()."""
    return names_by_address(answer["pods"])


class _Connection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_ANSWER_SECONDS)
        self._path = path

    def connect(self) -> None:
        self.sock = self._socket = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(_ANSWER_SECONDS)
        self.sock.connect(str(self._path))

    def wait_for_ever(self) -> None:
        """Lift the timeout for the body. By then the response has taken `sock`, which is None."""
        self._socket.settimeout(None)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise QueryError(
            f"no agent answers at {path}: start `ebpflb run`, or give its --query-socket"
        ) from error
    except PermissionError as error:
        raise QueryError(f"{path}: only root may query the agent: use sudo") from error
    except TimeoutError as error:
        seconds = f"{_ANSWER_SECONDS:g}"
        raise QueryError(f"{path}: the agent has not answered for {seconds} s") from error
    except http.client.RemoteDisconnected as error:
        raise QueryError(f"{path}: the agent did not answer: see its log") from error
    except http.client.IncompleteRead as error:
        raise QueryError(f"{path}: the agent has stopped") from error
    except (OSError, http.client.HTTPException) as error:
        text = getattr(error, "strerror", None) or f"what answers is not an agent ({error})"
        raise QueryError(f"{path}: {text}") from error


def _reason(answer: http.client.HTTPResponse) -> str:
    content = answer.read()
    try:
        return str(visible(from_json(content)["error"]))
    except (ValueError, KeyError, TypeError):
        return f"the agent answered {answer.status} {answer.reason}"


_PAGE_SECONDS = 2.0
_ANY = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}


class Page(NamedTuple):
    status: int
    body: bytes


def fetch(bind_address: str, path: str) -> Page | None:
    """A page of the agent that listens at `bind_address`; None if nothing answers there."""
    address = parse_bind_address(bind_address)
    if address is None:
        return None
    host = _ANY.get(address.host, address.host)
    connection = http.client.HTTPConnection(host, address.port, timeout=_PAGE_SECONDS)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", path)
        answer = connection.getresponse()
        return Page(answer.status, answer.read())
    return None


def fetch_json(bind_address: str, path: str) -> dict[str, Any] | None:
    """A page that is a JSON object; None if nothing answers, or not with an object."""
    page = fetch(bind_address, path)
    if page is None or page.status != HTTPStatus.OK:
        return None
    try:
        content = from_json(page.body)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


def ask_agent(metrics_address: str) -> AgentReport | None:
    """The agent's /status page; None when no agent answers there. QueryError if it is odd."""
    content = fetch_json(metrics_address, "/status")
    if not content or "in_sync" not in content:
        return None
    try:
        return convert(content, AgentReport)
    except ValidationError as error:
        raise QueryError(
            f"{metrics_address}: the agent's /status is not this version's: {error}"
        ) from error


SERVED, AGENT_DOWN, BEHIND, NOT_SERVED = "served", "agent down", "behind", "not served"


def node_in_words(state: str, state_of: str, now: str) -> str:
    """A node's state; of one whose programs serve without an agent also what they serve.

    `state_of`: when the maps last had all that was wanted; `now`: both as in RFC 3339, in UTC.
    """
    if state not in (AGENT_DOWN, BEHIND) or not state_of:
        return state
    (day, clock), today = state_of.split("T"), now.partition("T")[0]
    shown = clock[:5] if day == today else f"{day} {clock[:5]}"
    return f"{state}, serving the state of {shown}"


def silent_nodes(agent: AgentReport) -> Mapping[str, list[str]]:
    """Why tunnels to some nodes carry nothing -> the nodes and families.

    Skips families for which this node uses no tunnels.
    """
    families = defaultdict[tuple[str, str], list[str]](list)
    without = agent.tunnels.without if agent.tunnels else {}
    for each in agent.dsr_peers.unreachable if agent.dsr_peers else ():
        if each.family not in without:
            families[each.why, each.node].append(each.family)
    found = defaultdict[str, list[str]](list)
    for (why, node), names in families.items():
        found[why].append(f"{node} ({', '.join(names)})")
    return found
