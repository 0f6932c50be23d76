# SPDX-License-Identifier: Apache-2.0
"""Fills in pod addresses in records of sockets that had none yet: refused ones, and UDP.

The socket hooks know such a client only by its network namespace.
"""

from collections.abc import Callable, Collection

from ebpflb.dataplane.flows.records import client_namespace, is_readable, with_client
from ebpflb.model.address import Address, family_of
from ebpflb.observe.flows.flow_log import PodOf

AddressesIn = Callable[[int], Collection[Address]]
"""Externally reachable addresses of the network namespace with a cookie; empty if unknown."""

_UNKNOWN = Address(bytes(16))


class SocketClients:
    """Thread-safe."""

    def __init__(self, addresses_in: AddressesIn, pod_of: PodOf) -> None:
        self._addresses_in = addresses_in
        self._pod_of = pod_of

    def with_address(self, record: bytes) -> bytes:
        """The record with its client's address, if it names a namespace; zero if that is gone."""
        namespace = client_namespace(record) if is_readable(record) else None
        if namespace is None:
            return record
        known = self._addresses_in(namespace.cookie)
        own = [each for each in known if family_of(each) is namespace.family]
        # Prefer the API's pod IP: a pod may also be on networks that the API does not know.
        address = min(own, key=lambda each: (not self._pod_of(each).pod, each), default=_UNKNOWN)
        return with_client(record, address)
