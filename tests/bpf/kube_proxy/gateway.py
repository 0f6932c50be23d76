# SPDX-License-Identifier: Apache-2.0
"""A node between a client and a pod, in three network namespaces; the test's thread is on the
node.
"""

import re
import socket
from collections.abc import Callable

from ebpflb.lab.namespaces import write_sysctls
from tests.bpf.attach.network import Network, entered, ip, run
from tests.bpf.kube_proxy.rules import FAMILIES, rules

# Seconds to wait for packets that must arrive, and for packets that must not.
PATIENCE, SOON = 60.0, 0.5
VIP_PORT, NODE_PORT, POD_PORT = 80, 30080, 8080
BACKENDS = ("legacy", "nft")

_PROGRAMS = {4: "iptables", 6: "ip6tables"}
_COUNTERS = re.compile(r" \[\d+:\d+\]$", re.MULTILINE)
_COMMENTS = re.compile(r"^#.*\n", re.MULTILINE)


class Gateway:
    """Both families."""

    def __init__(self, network: Network) -> None:
        self.client = network.add_pod("veth-client")
        self.pod = network.add_pod("veth-pod")
        write_sysctls({"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"})
        for version, names in FAMILIES.items():
            self._connect(version, names)

    def _connect(self, version: int, names: dict[str, object]) -> None:
        nodad = " nodad" if version == 6 else ""
        node = (
            "addr add {node}/{prefix} dev veth-client%s\naddr add {gateway}/{prefix} dev veth-pod%s"
        )
        ip(node.format_map(names) % (nodad, nodad))
        for path, own, router in ((self.client, "client", "node"), (self.pod, "pod", "gateway")):
            with entered(path):
                ip(
                    f"addr add {names[own]}/{names['prefix']} dev eth0{nodad}\n"
                    f"route add default via {names[router]}"
                )

    def connect(self, address: str, port: int, seconds: float = PATIENCE) -> socket.socket:
        """A new connection from the client; OSError when none is established in time."""
        with entered(self.client):
            return socket.create_connection((address, port), timeout=seconds)

    def listen(self, version: int) -> socket.socket:
        """A socket of the pod that accepts connections."""
        family = socket.AF_INET if version == 4 else socket.AF_INET6
        with entered(self.pod):
            return socket.create_server((str(FAMILIES[version]["pod"]), POD_PORT), family=family)


class Connection:
    """An established connection from the client to the pod through the node's NAT."""

    def __init__(self, gateway: Gateway, version: int, address: str, port: int) -> None:
        with gateway.listen(version) as server:
            self._there = gateway.connect(address, port)
            self._here, peer = server.accept()
        self.client_as_seen: str = peer[0]

    def close(self) -> None:
        """Close both ends."""
        self._there.close()
        self._here.close()

    def is_alive(self, seconds: float = PATIENCE) -> bool:
        """Whether data arrives in both directions in time."""
        for end in (self._there, self._here):
            end.settimeout(seconds)
        try:
            self._there.sendall(b"ping")
            there = self._here.recv(16)
            self._here.sendall(b"pong")
            return (there, self._there.recv(16)) == (b"ping", b"pong")
        except OSError:
            return False


def load_iptables(backend: str, file: str) -> None:
    """Add the rules of a file in both families."""
    for version, program in _PROGRAMS.items():
        run(f"{program}-{backend}-restore", "--noflush", stdin=rules(file, FAMILIES[version]))


def load_nftables(file: str) -> None:
    """Add the rules of a file in both families."""
    for version in FAMILIES:
        run("nft", "-f", "-", stdin=rules(file, FAMILIES[version]))


# How to write kube-proxy's rules, by where they are written.
LOADERS: dict[str, Callable[[], None]] = {
    "legacy": lambda: load_iptables("legacy", "kube_proxy.iptables"),
    "nft": lambda: load_iptables("nft", "kube_proxy.iptables"),
    "nftables": lambda: load_nftables("kube_proxy.nft"),
}


def saved(backend: str) -> dict[int, str]:
    """All rules of a backend, by IP version, without counters and times."""
    texts = {version: run(f"{program}-{backend}-save") for version, program in _PROGRAMS.items()}
    return {version: _COMMENTS.sub("", _COUNTERS.sub("", text)) for version, text in texts.items()}


def ruleset() -> str:
    """All of nftables, without counters."""
    return run("nft", "--stateless", "list", "ruleset")


def kube_proxy_names(texts: dict[int, str]) -> set[str]:
    """The chains whose names begin with KUBE-."""
    return {name for text in texts.values() for name in re.findall(r"^:(KUBE-\S+)", text, re.M)}
