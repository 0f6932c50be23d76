# SPDX-License-Identifier: Apache-2.0
"""Pods of this node and their namespaces, as far as they choose how they are load-balanced."""

from dataclasses import dataclass

from ebpflb.model.address import Address
from ebpflb.model.service import Labels


@dataclass(frozen=True, slots=True)
class Pod:
    """socket_lb: whether its sockets are served; None where the pod does not say.

    addresses: none for a pod of the host's network.
    """

    namespace: str
    name: str
    addresses: tuple[Address, ...] = ()
    socket_lb: bool | None = None


@dataclass(frozen=True, slots=True)
class PodNamespace:
    """A Namespace. socket_lb: for its pods that do not say it themselves."""

    name: str
    socket_lb: bool | None = None
    labels: Labels = ()
