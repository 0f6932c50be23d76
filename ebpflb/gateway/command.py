# SPDX-License-Identifier: Apache-2.0
"""ebpflb gateway: makes Services of the Gateways and ServiceImports of a cluster."""

import logging
import signal
import socket
import uuid
from pathlib import Path

import click

from ebpflb import __version__
from ebpflb.gateway.controller import GatewayController
from ebpflb.gateway.lease import Lease
from ebpflb.gateway.store import APIS, ObjectStore
from ebpflb.log import fields, set_up
from ebpflb.model.address import parse_range
from ebpflb.source.api import Api

_log = logging.getLogger("ebpflb.gateway")

_LEASE = "ebpflb-gateway"


def _ranges(_ctx: click.Context, _param: click.Parameter, texts: tuple[str, ...]) -> list[str]:
    try:
        return [parse_range(each)[1] for each in texts]
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


@click.command(
    epilog="""\b
It runs in a pod, as the chart's values gateway.enabled and multicluster.enabled have it. Of several
processes the one that holds a lease works.

\b
Examples:
  ebpflb gateway --namespace kube-system --address-range 203.0.113.0/24
  ebpflb gateway --namespace kube-system --api gateway --api multicluster
  ebpflb gateway --namespace kube-system --kubeconfig ~/.kube/config -v
"""
)
@click.option("--namespace", required=True, metavar="NS", help="Where its Lease is.")
@click.option(
    "--api",
    "apis",
    multiple=True,
    type=click.Choice(list(APIS)),
    default=["gateway"],
    show_default=True,
    help="Serve Gateway API's Gateways, or the MCS API's ServiceImports; repeatable.",
)
@click.option(
    "--address-range",
    "ranges",
    multiple=True,
    metavar="CIDR",
    callback=_ranges,
    help="Gateways may choose addresses from it; repeatable.",
)
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="To use instead of the pod's ServiceAccount.",
)
@click.option("-v", "--verbosity", count=True, help="Log more.")
def gateway(
    namespace: str,
    apis: tuple[str, ...],
    ranges: list[str],
    kubeconfig: Path | None,
    verbosity: int,
) -> None:
    """Make Services of Gateways, TCPRoutes and UDPRoutes, and of ServiceImports."""
    set_up("text", verbosity)
    api = Api(kubeconfig, "")
    store = ObjectStore(api, apis)
    holder = f"{socket.gethostname()}_{uuid.uuid4()}"
    controller = GatewayController(api, store, Lease(api, namespace, _LEASE, holder), ranges)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: controller.stop())
    _log.info("started", extra=fields(version=__version__, api=api.address))
    store.start()
    controller.run()
    store.stop()
