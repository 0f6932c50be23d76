# SPDX-License-Identifier: Apache-2.0
"""Pods of this node and their namespaces: how to load-balance them, and their names."""

from dataclasses import dataclass
from typing import NamedTuple

from ebpflb.model.address import Address
from ebpflb.model.service import Labels


@dataclass(frozen=True, slots=True)
class Pod:
    """socket_lb: whether its sockets are load-balanced; None if the pod does not say.

    addresses: none for a pod in the host network, or one that has finished. workload: see NamedPod.
    """

    namespace: str
    name: str
    addresses: tuple[Address, ...] = ()
    socket_lb: bool | None = None
    workload: str = ""


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
