# SPDX-License-Identifier: Apache-2.0
"""What is left out of answers about one namespace.

A viewer sees what concerns Services of the namespace; the names of pods, as far as it may list
pods in their namespaces; and no address of a node, unless it may list nodes. Names of nodes stay.
Answers about all namespaces are not redacted.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_address, ip_network
from itertools import dropwhile
from typing import Any, NamedTuple

from msgspec import structs

from ebpflb.kubectl.services import FrontendOfCluster
from ebpflb.model.address import format_address, parse_address, parse_range
from ebpflb.model.connection import OpenConnection
from ebpflb.model.flow import (
    BackendRate,
    Flow,
    FlowBackend,
    FlowClient,
    FlowFrontend,
    FlowService,
    ServiceRate,
)
from ebpflb.model.plan import FrontendType

ELSEWHERE = "another namespace"
A_NODE = "a node"
"""These stand for a pod's name; no pod is called so, since they have no slash."""

# An escape in JSON, or a word that may be or have an address; a letter of an escape is no part of
# the word that follows.
_WORD = re.compile(
    r"\\(?:u[0-9a-f]{4}|x[0-9a-f]{2}|[^ux])|(?P<word>[0-9a-z.:]++)", re.IGNORECASE | re.DOTALL
)
_IPV4 = re.compile(r"(?<![0-9])(?<![0-9]\.)[0-9]{1,3}(?:\.[0-9]{1,3}){3}(?![0-9]|\.[0-9])")
# What may be between the colons of an IPv6 address.
_GROUP = re.compile(r"[0-9a-f]{0,4}|[0-9.]{7,15}", re.IGNORECASE)
_COLONS_OF_IPV6 = 2

Range = IPv4Network | IPv6Network


class ClusterAddresses(NamedTuple):
    """nodes: as format_address() writes them. pod_cidrs: without overlaps.

    are_complete: whether every node has told the CIDRs of its pods.
    """

    nodes: frozenset[str]
    pod_cidrs: tuple[Range, ...]
    are_complete: bool


def cluster_addresses(nodes: Iterable[Mapping[str, Any]]) -> ClusterAddresses:
    """From Node objects: status.addresses, spec.podCIDRs, spec.podCIDR. Odd values are skipped."""
    addresses = set[str]()
    ranges = list[Range]()
    told = []
    for node in nodes:
        addresses.update(filter(None, map(canonical, _addresses(node))))
        own = list(_ranges(node))
        ranges += own
        told.append(bool(own))
    pod_cidrs: tuple[Range, ...] = (
        *collapse_addresses(each for each in ranges if isinstance(each, IPv4Network)),
        *collapse_addresses(each for each in ranges if isinstance(each, IPv6Network)),
    )
    return ClusterAddresses(frozenset(addresses), pod_cidrs, bool(told) and all(told))


def canonical(address: str) -> str:
    """As format_address() writes it, without a zone id; "" if it is no address."""
    try:
        return format_address(parse_address(address.partition("%")[0]))
    except ValueError:
        return ""


class _Shown(NamedTuple):
    """What may be told of a client or a backend.

    pod: its name, or what stands for it. is_hidden: not even its port. is_named: what else is known
    of it may be told.
    """

    pod: str
    address: str
    is_hidden: bool = False
    is_named: bool = True


@dataclass(frozen=True, slots=True)
class NamespaceSight:
    """What a viewer who asked within `namespace` may see; nothing that is given is changed.

    sees_pods: whether it may list pods of a namespace; "" for all. sees_nodes: or nodes.
    """

    namespace: str
    sees_pods: Callable[[str], bool]
    sees_nodes: bool
    addresses: ClusterAddresses

    def flow(self, flow: Flow) -> Flow | None:
        """None if it is not of a Service of the namespace."""
        if not self._is_own(flow.service):
            return None
        return structs.replace(
            flow,
            client=flow.client and self._client(flow.client),
            frontend=self._flow_frontend(flow.frontend),
            backend=flow.backend and self._backend(flow.backend),
        )

    def connection(self, found: OpenConnection) -> OpenConnection | None:
        """None if it is not to a Service of the namespace."""
        if not self._is_own(found.service):
            return None
        return structs.replace(
            found,
            client=found.client and self._client(found.client),
            frontend=self._flow_frontend(found.frontend),
            backend=self._backend(found.backend),
        )

    def rate(self, rate: ServiceRate) -> ServiceRate | None:
        """None if the Service is not of the namespace."""
        if rate.namespace != self.namespace:
            return None
        shown = [self._shown(each.pod, each.address) for each in rate.backends]
        names = dict[str, str]()
        for each, seen in zip(rate.backends, shown, strict=True):
            names[each.address] = seen.address or seen.pod
            names[each.pod] = seen.pod if each.pod else ""
        return replace(
            rate,
            troubles=tuple(self._trouble(each, names) for each in rate.troubles),
            backends=tuple(map(_backend_rate, rate.backends, shown)),
        )

    def frontend(self, frontend: FrontendOfCluster) -> FrontendOfCluster | None:
        """None if the Service is not of the namespace."""
        name = frontend.name
        if name.namespace != self.namespace:
            return None
        settings = frontend.settings.items()
        return replace(
            frontend,
            name=name._replace(address=self._frontend_address(name.address, name.type)),
            settings={key: self._setting(value) for key, value in settings},
            backends=self._distinct(frontend.backends),
            differences=self._differences(frontend.differences),
        )

    def sees(self, namespace: str) -> bool:
        """Whether it may know the pods of a namespace."""
        return namespace == self.namespace or self.sees_pods(namespace)

    def text(self, line: bytes | str) -> str:
        """With A_NODE for each address of a node, be it alone, with a port or in brackets.

        `line`: plain, or JSON. An IPv6 address with a port is in brackets: without, the port would
        be a part of it.
        """
        text = line.decode(errors="replace") if isinstance(line, bytes) else line
        if self.sees_nodes or not self.addresses.nodes:
            return text
        return _WORD.sub(lambda found: self._word(found["word"]) or found[0], text)

    def _is_own(self, service: FlowService | None) -> bool:
        return service is not None and service.namespace == self.namespace

    def _shown(self, pod: str, address: str) -> _Shown:
        """`pod`: "" if unknown. `address`: "" if unknown."""
        if not self._is_visible(pod, address):
            return _Shown(ELSEWHERE, "", is_hidden=True, is_named=False)
        if self._is_node(address) and not self.sees_nodes:
            return _Shown(pod or A_NODE, "", is_named=bool(pod))
        return _Shown(pod, address)

    def _is_visible(self, pod: str, address: str) -> bool:
        """Without a pod: if it is a node, outside the cluster, or any pod may be seen."""
        if pod:
            return self._sees_pod(pod)
        if not address or self._is_node(address):
            return True
        return not self.may_be_a_pods(canonical(address)) or self.sees_pods("")

    def _is_node(self, address: str) -> bool:
        return canonical(address) in self.addresses.nodes

    def _sees_pod(self, pod: str) -> bool:
        """What is not NAMESPACE/NAME may be of any namespace."""
        namespace, _, name = pod.partition("/")
        if not name or "/" in name:
            return self.sees_pods("")
        return self.sees(namespace)

    def may_be_a_pods(self, address: str) -> bool:
        """`address`: canonical, or "" for what is none, of which nothing is known."""
        if not address:
            return True
        found = ip_address(address)
        ranges = [each for each in self.addresses.pod_cidrs if each.version == found.version]
        if any(found in each for each in ranges):
            return True
        return not (found.is_global or (ranges and self.addresses.are_complete))

    def _client(self, client: FlowClient) -> FlowClient:
        shown = self._shown(client.pod, client.address)
        return structs.replace(
            client,
            address=shown.address,
            port=0 if shown.is_hidden else client.port,
            pod=shown.pod,
            workload=client.workload if client.pod and shown.is_named else "",
        )

    def _backend(self, backend: FlowBackend) -> FlowBackend:
        """The zone stays: it is that of many."""
        shown = self._shown(backend.pod, backend.address)
        return structs.replace(
            backend,
            address=shown.address,
            port=0 if shown.is_hidden else backend.port,
            pod=shown.pod,
            workload=backend.workload if backend.pod and shown.is_named else "",
            node=backend.node if shown.is_named else "",
            local=backend.local if shown.is_named else None,
        )

    def _flow_frontend(self, frontend: FlowFrontend) -> FlowFrontend:
        address = self._frontend_address(frontend.address, frontend.type)
        return structs.replace(frontend, address=address)

    def _frontend_address(self, address: str, kind: str) -> str:
        """Empty for a node's. That of a NodePort is one, also if no Node tells it.

        `kind`: a FrontendType, "" if unknown.
        """
        found = canonical(address)
        if self.sees_nodes or (found and ip_address(found).is_unspecified):
            return address
        is_other = found and kind != FrontendType.NODE_PORT and found not in self.addresses.nodes
        return address if is_other else ""

    def _trouble(self, trouble: str, names: Mapping[str, str]) -> str:
        """`names`: of backends, and what to show for each; other pods and addresses are judged."""
        return self.text(" ".join(self._name(each, names) for each in trouble.split(" ")))

    def _name(self, word: str, names: Mapping[str, str]) -> str:
        if word in names:
            return names[word]
        if "/" in word:
            return self._shown(word, "").pod
        if canonical(word):
            shown = self._shown("", word)
            return shown.address or shown.pod
        return word

    def _setting(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._setting, value))
        return self.text(value) if isinstance(value, str) else value

    def _distinct(self, backends: Mapping[str, int]) -> Mapping[str, int]:
        """Backends on several nodes stay several."""
        found, times = dict[str, int](), Counter[str]()
        for backend, nodes in backends.items():
            name = self.text(backend)
            times[name] += 1
            found[f"{name} ({times[name]})" if times[name] > 1 else name] = nodes
        return found

    def _differences(self, differences: Mapping[str, list[str]]) -> Mapping[str, list[str]]:
        """Those that read the same are one."""
        found = dict[str, list[str]]()
        for what, nodes in differences.items():
            found.setdefault(self.text(what), []).extend(nodes)
        return {what: sorted(set(nodes)) for what, nodes in found.items()}

    def _word(self, word: str | None) -> str:
        if not word:
            return ""
        if word.count(":") >= _COLONS_OF_IPV6:
            for each in _candidates(word):
                if self._is_node(each):
                    return word.replace(each, A_NODE, 1)
        return _IPV4.sub(self._ipv4, word)

    def _ipv4(self, found: re.Match[str]) -> str:
        return A_NODE if self._is_node(found[0]) else found[0]


def _candidates(word: str) -> Iterator[str]:
    """What may be the IPv6 address in a word, with or without the colon before or after it."""
    groups = word.rstrip(".").split(":")
    for _ in ("before", "after"):
        groups = list(dropwhile(lambda each: not _GROUP.fullmatch(each), groups))[::-1]
    found = ":".join(groups)
    yield from (found, found.removeprefix(":"), found.removesuffix(":"))
    yield found.removeprefix(":").removesuffix(":")


def _backend_rate(backend: BackendRate, shown: _Shown) -> BackendRate:
    port = 0 if shown.is_hidden else backend.port
    return replace(backend, address=shown.address, port=port, pod=shown.pod)


def _addresses(node: object) -> Iterator[str]:
    """Of any type: a Hostname may be an address, too."""
    found = _member(_member(node, "status"), "addresses")
    for each in found if isinstance(found, list) else ():
        if isinstance(text := _member(each, "address"), str):
            yield text


def _ranges(node: object) -> Iterator[Range]:
    spec = _member(node, "spec")
    several = _member(spec, "podCIDRs")
    for each in [*(several if isinstance(several, list) else ()), _member(spec, "podCIDR")]:
        try:
            yield ip_network(parse_range(each)[1])
        except (ValueError, TypeError):
            continue


def _member(of: object, name: str) -> object:
    return of.get(name) if isinstance(of, Mapping) else None
