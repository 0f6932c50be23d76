# SPDX-License-Identifier: Apache-2.0
"""Pods of this node and their namespaces: how to load-balance them, and their names."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import NamedTuple, Self

from ebpflb.model.address import Address
from ebpflb.model.service import Labels


@dataclass(frozen=True, slots=True)
class Pod:
    """socket_lb: whether its sockets are load-balanced; None if the pod does not say.

    addresses: none for a pod in the host network, or one that has finished. workload: see NamedPod.
    uid: as in the name of its cgroup; "" if unknown.
    """

    namespace: str
    name: str
    addresses: tuple[Address, ...] = ()
    socket_lb: bool | None = None
    workload: str = ""
    uid: str = ""


class NamedPod(NamedTuple):
    """The owner of an address. pod: NAMESPACE/NAME. workload: KIND/NAME of the pod's controller.

    Unknown parts are "".
    """

    pod: str = ""
    workload: str = ""


NOBODY = NamedPod()
"""For an address that is not known to be a pod's."""


@dataclass(frozen=True, slots=True)
class PodNamespace:
    """A Namespace. socket_lb: for its pods that do not set it themselves."""

    name: str
    socket_lb: bool | None = None
    labels: Labels = ()


class PodSockets(NamedTuple):
    """What decides about the sockets of this node's pods, by their addresses.

    tc_only: of pods that have opted out of socket LB. uids: of those that have one.
    """

    tc_only: frozenset[Address] = frozenset()
    uids: Mapping[Address, str] = MappingProxyType({})

    @classmethod
    def of(cls, pods: Iterable[Pod], has_socket_lb: Callable[[Pod], bool]) -> Self:
        pods = list(pods)
        out = (pod for pod in pods if not has_socket_lb(pod))
        return cls(
            frozenset(address for pod in out for address in pod.addresses),
            {address: pod.uid for pod in pods if pod.uid for address in pod.addresses},
        )


def names_by_address(pods: Mapping[str, Iterable[str]]) -> Mapping[str, str]:
    """`pods`: addresses by NAMESPACE/NAME.

    Pods on the host's network share an address: it is no name for them, and has "".
    """
    found = defaultdict[str, list[str]](list)
    for name, addresses in pods.items():
        for address in addresses:
            found[address].append(name)
    return {address: names[0] if len(names) == 1 else "" for address, names in found.items()}
