# SPDX-License-Identifier: Apache-2.0
"""Services for tests, each written to the maps in one call."""

from collections.abc import Sequence
from socket import AF_INET, AF_INET6, inet_ntop, inet_pton

from ebpflb.dataplane.layout.enums import AddrFlag, BackendFlag, FrontendTypeCode, IfEmptyCode
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.node import OVERLAY_MTU, Node
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind

CLIENT_PORT = 40000
CLUSTER_PORT = 80
NODE_PORT = 30080
BACKEND_PORT = 8080

REFUSE, DROP = IfEmptyCode.LB_EMPTY_REFUSE, IfEmptyCode.LB_EMPTY_DROP
WILDCARD = {IPV4: "0.0.0.0", IPV6: "::"}


def pod(kind: Kind, port: int = CLIENT_PORT) -> End:
    """A port of the client pod on this node."""
    return End(kind.net.pod, port)


def client(kind: Kind, port: int = CLIENT_PORT) -> End:
    """A port of the external client."""
    return End(kind.net.client, port)


def cluster_ip(
    datapath: Datapath, kind: Kind, backends: Sequence[int] = (), if_empty: IfEmptyCode = REFUSE
) -> End:
    """A ClusterIP with the same backends for every client."""
    frontend = End(kind.net.cluster_ip, CLUSTER_PORT)
    datapath.address(frontend.address, AddrFlag.LB_ADDR_CLUSTER_IP)
    datapath.frontend(frontend, kind.proto, local=backends, others=backends, if_empty=if_empty)
    return frontend


def external_ip(
    datapath: Datapath, kind: Kind, local: Sequence[int] = (), others: Sequence[int] = ()
) -> End:
    """An external IP; `local`: the backends for this node's own pods and processes."""
    frontend = End(kind.net.external_ip, CLUSTER_PORT)
    datapath.address(frontend.address, AddrFlag.LB_ADDR_EXTERNAL)
    datapath.frontend(
        frontend, kind.proto, local=local, others=others, kind=FrontendTypeCode.LB_EXTERNAL_IP
    )
    return frontend


def node_port(
    datapath: Datapath, kind: Kind, backends: Sequence[int] = (), if_empty: IfEmptyCode = REFUSE
) -> End:
    """A NodePort; returns it at the node's address."""
    datapath.frontend(
        End(WILDCARD[kind.net], NODE_PORT),
        kind.proto,
        local=backends,
        others=backends,
        if_empty=if_empty,
        kind=FrontendTypeCode.LB_NODE_PORT,
    )
    return End(kind.net.node, NODE_PORT)


def node_addresses(datapath: Datapath, node: Node) -> None:
    """The node's own addresses, which accept NodePorts, and its devices' masquerade addresses."""
    flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
    for net in (IPV4, IPV6):
        datapath.address(net.node, flags)
        datapath.address(net.overlay, flags)
    datapath.device(node.uplink.ifindex, snat4=IPV4.node, snat6=IPV6.node)
    datapath.device(node.overlay.ifindex, snat4=IPV4.overlay, snat6=IPV6.overlay, mtu=OVERLAY_MTU)
    datapath.device(node.tunnel.ifindex, snat4=IPV4.overlay, snat6=IPV6.overlay)


def same_place(text: str) -> str:
    """Another address with the same index in lb_dest_filter: two 16-bit words are swapped."""
    family = AF_INET6 if ":" in text else AF_INET
    packed = inet_pton(family, text)
    return inet_ntop(family, packed[:-4] + packed[-2:] + packed[-4:-2])


def remote_backend(datapath: Datapath, kind: Kind, address: str = "") -> tuple[End, int]:
    """A backend on another node, and its index."""
    end = End(address or kind.net.remote, BACKEND_PORT)
    return end, datapath.backend(end, kind.proto)


def local_backend(datapath: Datapath, kind: Kind, address: str = "") -> tuple[End, int]:
    """A backend on this node, and its index."""
    end = End(address or kind.net.local, BACKEND_PORT)
    return end, datapath.backend(end, kind.proto, flags=BackendFlag.LB_BACKEND_LOCAL)


def unnamed_backend(datapath: Datapath, kind: Kind, address: str = "") -> tuple[End, int]:
    """A backend on this node whose flags do not say so, and its index."""
    return remote_backend(datapath, kind, address or kind.net.local)
