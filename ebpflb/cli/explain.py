# SPDX-License-Identifier: Apache-2.0
"""ebpflb explain: what would happen to a new connection on this node, and why."""

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from ebpflb.cli.agent_client import UnanswerableError, ask, query_socket_option, stream
from ebpflb.cli.explain_text import ExplainCommand, exit_status, outcome_of, rendered
from ebpflb.cli.explain_words import AskedConnection
from ebpflb.cli.options import Output, at_option, name_namespace_option, output_option
from ebpflb.cli.pinned import bpffs_option, open_pins, pin_root
from ebpflb.cli.render import emit
from ebpflb.config.settings import setting
from ebpflb.config.values import near
from ebpflb.dataplane.explain.question import ExplainQuestion, Explanation
from ebpflb.errors import ConfigError, QueryError, SourceError
from ebpflb.model.address import format_address
from ebpflb.model.flow import Flow, read_flow
from ebpflb.model.service import ServiceName

Answer = TypeVar("Answer")


@click.command(
    cls=ExplainCommand,
    epilog="""\b
SRC  host            a process on this node
     10.1.0.5        a pod, or a client elsewhere, by address
     default/web-0   a pod, by name
     With a port (10.1.0.5:40000, [fd00::5]:40000), an existing flow from it decides.
DST  10.96.0.10:80, [fd00::10]:80, default/web, default/web:http,
     web.default.svc:80; TCP unless /udp or /sctp follows
Names without a namespace are looked up in that of -n, or in `default`.

\b
Exit status:
  0  works: DNAT to a backend
  1  fails: refused, dropped, or sent to a frontend but not translated; or likely fails, because
     each possible backend is unreachable or failed its last connection
  2  usage error
  3  unknown: an error, or the kernel and the agent's model differ
  4  not a Service address: passes unchanged
  5  works for some of the possible backends: others are unreachable or failed their last connection

\b
Examples:
  ebpflb explain host default/kubernetes
  ebpflb explain 10.1.0.5 10.96.0.10:53/udp
  ebpflb explain 198.51.100.7 192.0.2.1:30080 -o json | jq .outcome
""",
)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@at_option
@name_namespace_option
@bpffs_option
@query_socket_option
@output_option
def explain(source: str, target: str, output: Output, **given: str | None) -> None:
    """Explain what happens to a connection from SRC to DST.

    It follows the steps of the BPF programs on the live maps of this node, and compares the
    frontend with the agent's model. Without an agent, it explains the maps alone. It sends no
    packets: it judges whether a backend answers by the last connection to it through this node, if
    that ended in the last 5 minutes, and by this client's connections at tc that still wait for an
    answer.

    With --at, it tells what this node served at that moment, and which endpoints had failed, from
    what the agent has kept. The maps of then are gone: neither hook nor source address is known.
    """
    asked = AskedConnection(source, target, given["namespace"] or "default", given["at"] or "")
    try:
        asked.check()
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    found = _found(asked, pin_root(given["bpffs_root"]), given["query_socket"])
    if output in ("table", "wide"):
        click.echo(rendered(found, is_wide=output == "wide"))
    else:
        emit(found, output, lambda: ())
    raise click.exceptions.Exit(exit_status(found))


def _found(asked: AskedConnection, root: Path, query_socket: str | None) -> dict[str, Any]:
    agent = _AskedAgent(setting("query-socket", query_socket, os.environ))
    name = asked.client.name
    pods = agent.pods() if name else {}
    if asked.at:
        seen = agent.addresses_until(str(name), asked.at) if name else []
        question = _question(asked, pods, root, seen)
        found = agent.explain(question)
        if found is None:
            raise QueryError(f"what was served at {asked.at} only the agent knows: {agent.failed}")
        return told(found)
    maps = open_pins(root)[1] if agent.failed else None
    question = _question(asked, pods, root)
    found = agent.explain(question)
    if found is None:
        from ebpflb.dataplane.explain.answer import explain as explain_maps

        maps = maps or open_pins(root)[1]
        found = explain_maps(maps, root, question, None, agent.failed)
    return told(found)


def told(found: Explanation) -> dict[str, Any]:
    """As JSON has it, with the outcome."""
    plain: dict[str, Any] = msgspec.to_builtins(found)
    return {"note": plain.pop("note"), "outcome": str(outcome_of(plain)), **plain}


def _question(
    asked: AskedConnection,
    pods: Mapping[str, list[str]],
    root: Path,
    seen: Sequence[str] = (),
) -> ExplainQuestion:
    """`pods`: those that the agent knows. `seen`: the addresses that a pod of that name had."""
    addresses: Sequence[str] = ()
    if name := asked.client.name:
        addresses = pods.get(str(name)) or seen or _ask_api_server(name, pods)
    return question_of(asked, addresses, str(root))


def question_of(
    asked: AskedConnection, addresses: Sequence[str], pins: str = ""
) -> ExplainQuestion:
    """`addresses`: of the pod that SRC names. `pins`: see ExplainQuestion."""
    source, target = asked.client, asked.destination
    end = target.end
    return ExplainQuestion(
        format_address(end.address) if end.address else str(end.name),
        ",".join([format_address(source.address)] if source.address else addresses),
        end.port,
        int(source.port or 0),
        bool(source.name),
        target.protocol.name if target.protocol else "",
        pins,
        asked.at,
    )


class _Names(msgspec.Struct):
    """Of /v1/names: addresses by NAMESPACE/NAME."""

    pods: dict[str, list[str]]


class _AskedAgent:
    """This node's agent, through its query socket. If it fails once, it is not asked again."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # Why it does not answer.
        self.failed = "" if path else "there is no query socket (--query-socket)"

    def pods(self) -> Mapping[str, list[str]]:
        """The addresses of every pod that it knows."""
        found = self._ask(_Names, "names", {})
        return found.pods if found else {}

    def addresses_until(self, pod: str, at: str) -> list[str]:
        """Those that a pod had in its last flow until then, if any is kept."""
        if self.failed or not self._path:
            return []
        given = {"from": pod, "since": "24h", "until": at, "limit": "1"}
        try:
            flows = [read_flow(line) for line in stream(self._path, ("flows",), given)]
        except QueryError:
            return []
        clients = [each.client for each in flows if isinstance(each, Flow) and each.client]
        return [each.address for each in clients if each.address]

    def explain(self, question: ExplainQuestion) -> Explanation | None:
        """UnanswerableError if nobody could answer that."""
        parameters = msgspec.to_builtins(question).items()
        return self._ask(Explanation, "explain", {name: str(value) for name, value in parameters})

    def _ask(self, kind: type[Answer], what: str, parameters: Mapping[str, str]) -> Answer | None:
        if self.failed or not self._path:
            return None
        try:
            return msgspec.convert(ask(self._path, what, **parameters), kind)
        except UnanswerableError:
            raise
        except QueryError as error:
            self.failed = str(error)
        except ValueError as error:
            self.failed = f"{self._path}: not an ebpflb agent ({error})"
        return None


def _ask_api_server(name: ServiceName, known: Iterable[str]) -> list[str]:
    """The addresses of a pod that is not an endpoint, from the API server."""
    from ebpflb.source.api import Api, ApiRequest, MissingError

    hint = near(str(name), known)
    problem = f"pod {name} is not an endpoint of a Service{hint}"
    try:
        api = Api(setting("kubeconfig", None, os.environ), setting("master", None, os.environ))
        path = f"/api/v1/namespaces/{name.namespace}/pods/{name.name}"
        pod: Any = api.get(ApiRequest(path, "pods", {}, verb="get"))
    except MissingError as error:
        raise ConfigError(f"no pod {name}{hint}") from error
    except (ConfigError, SourceError) as error:
        raise ConfigError(f"{problem}; give its address (API server: {error})") from error
    addresses = [str(each["ip"]) for each in pod.get("status", {}).get("podIPs", ())]
    if not addresses:
        raise ConfigError(f"pod {name} has no address yet")
    return addresses
