# SPDX-License-Identifier: Apache-2.0
"""Pods of this node and their namespaces: how they are load-balanced, and what they are called."""

from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.model.address import Address
from ebpflb.model.service import Labels


@dataclass(frozen=True, slots=True)
class Pod:
    """socket_lb: whether its sockets are served; None where the pod does not say.

    addresses: none for a pod of the host's network, or one that has finished. workload: as in
    NamedPod.
    """

    namespace: str
    name: str
    addresses: tuple[Address, ...] = ()
    socket_lb: bool | None = None
    workload: str = ""


class NamedPod(NamedTuple):
    """What an address is called. pod: NAMESPACE/NAME. workload: KIND/NAME of what made the pod.

    A part that is not known is "".
    """

    pod: str = ""
    workload: str = ""


NOBODY = NamedPod()
"""Of an address that is no pod's, as far as is known."""


@dataclass(frozen=True, slots=True)
class PodNamespace:
    """A Namespace. socket_lb: for its pods that do not say it themselves."""

    name: str
    socket_lb: bool | None = None
    labels: Labels = ()
