# SPDX-License-Identifier: Apache-2.0
"""ebpflb relay: an API server, behind that of the cluster, which asks all agents."""

import logging
import signal
import threading
from pathlib import Path

import click

from ebpflb import __version__
from ebpflb.config.options import OBSERVE_PORT
from ebpflb.config.values import BindAddress, parse_bind_address
from ebpflb.errors import ClusterError
from ebpflb.log import fields, set_up
from ebpflb.observe.http.server import TcpPort
from ebpflb.relay.access import ObservedCluster, PodAccess
from ebpflb.relay.agents import TlsAgents
from ebpflb.relay.answers import Answers
from ebpflb.relay.exchange import Exchange
from ebpflb.relay.following import FlowHub
from ebpflb.relay.server import MOST_WATCHERS, RelayPort, ServingCertificates
from ebpflb.relay.watching import FlowWatches
from ebpflb.web.server import HttpServer
from ebpflb.web.tls import Certificates, mutual_client

_log = logging.getLogger("ebpflb.relay")

_ADDRESS = ":8443"
_TLS, _AGENT_TLS = "/etc/ebpflb/tls", "/etc/ebpflb/agent-tls"
# Less than the plugin waits.
_ANSWER_SECONDS = 15.0


class _Port(TcpPort):
    # Of the others, few are answered at once.
    most_clients = MOST_WATCHERS + 64


def _address(_ctx: click.Context, _param: click.Parameter, text: str) -> BindAddress:
    try:
        found = parse_bind_address(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if found is None:
        raise click.BadParameter("want an address")
    return found


@click.command(
    epilog="""\b
It runs in a pod, as the chart's value relay.enabled has it, and serves the API group
observe.ebpflb.io behind the cluster's API server, which decides who may ask. It has no rights on
nodes: agents answer it over mutual TLS.

\b
Examples:
  kubectl get --raw /apis/observe.ebpflb.io/v1alpha1/namespaces/shop/flows?limit=20
"""
)
@click.option(
    "--bind-address",
    default=_ADDRESS,
    show_default=True,
    metavar="[IP]:PORT",
    callback=_address,
    help="Where the API server reaches it.",
)
@click.option(
    "--tls-directory",
    type=click.Path(path_type=Path),
    default=_TLS,
    show_default=True,
    metavar="DIR",
    help="Its own certificate: tls.crt and tls.key.",
)
@click.option(
    "--agent-tls-directory",
    type=click.Path(path_type=Path),
    default=_AGENT_TLS,
    show_default=True,
    metavar="DIR",
    help="What it shows agents, and by what it knows them: tls.crt, tls.key and ca.crt.",
)
@click.option(
    "--agent-port",
    type=click.IntRange(1, 65535),
    default=OBSERVE_PORT,
    show_default=True,
    metavar="PORT",
    help="The port of agents for it.",
)
@click.option("--agent-namespace", default="", metavar="NS", help="The agents' namespace.  [any]")
@click.option("-v", "--verbosity", count=True, help="Log more.")
def relay(
    bind_address: BindAddress,
    tls_directory: Path,
    agent_tls_directory: Path,
    agent_port: int,
    agent_namespace: str,
    verbosity: int,
) -> None:
    """Answer what the plugin asks, as an API of the cluster."""
    set_up("text", verbosity)
    cluster = ObservedCluster(PodAccess(), agent_namespace)
    encryption = Certificates(agent_tls_directory, mutual_client)
    agents = TlsAgents(agent_port, encryption.context, cluster.addresses_of, _ANSWER_SECONDS)

    def unready() -> str:
        try:
            cluster.front_proxy.get()
            encryption.context()
        except (ClusterError, OSError) as error:
            return str(error)
        return ""

    hub = FlowHub(
        cluster.agents.get,
        lambda agent: Exchange(agent.address, agent_port, encryption.context()),
    )
    port = RelayPort(cluster, FlowWatches(Answers(cluster, agents), hub.watch), unready)
    certificates = ServingCertificates(tls_directory, lambda: cluster.front_proxy.last)
    server = HttpServer()
    listening = _Port(server, bind_address, port.respond, encryption=certificates.context)
    listening.start(hard_fail=True)
    _log.info("started", extra=fields(version=__version__, port=listening.number))
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    ended.wait()
    listening.stop()
    server.stop()
