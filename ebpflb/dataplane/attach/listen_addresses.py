# SPDX-License-Identifier: Apache-2.0
"""Where a server of the node listens that is to be reached at the addresses that accept NodePorts.

The rules are those of kube-proxy's nodePortAddresses. Unlike a NodePort, such a server may also be
at a loopback address, where the CIDRs name one.
"""

from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_network

from ebpflb.dataplane.attach.devices import DeviceSettings, snapshot
from ebpflb.dataplane.attach.node_addresses import node_port_filter
from ebpflb.dataplane.kernel.interfaces import InterfaceAddress, read_addresses
from ebpflb.dataplane.kernel.netlink import Rtnetlink
from ebpflb.errors import ProbeError
from ebpflb.model.address import Family, format_address

Places = Mapping[Family, Sequence[str]]

_ALL = {Family.IPV4: "0.0.0.0", Family.IPV6: "::"}
# RT_SCOPE_LINK: nobody can bind there without naming the device.
_LINK_SCOPE = 253


def listen_addresses(settings: DeviceSettings) -> Places:
    """The addresses to listen at now, by family. ProbeError when netlink fails."""
    wanted = settings.nodeport_addresses
    if "primary" in wanted:
        primary = snapshot(settings).primary
        return {family: [format_address(address)] for family, address in primary.items()}
    return chosen(wanted, _read() if wanted else ())


def chosen(cidrs: Iterable[str], addresses: Iterable[InterfaceAddress]) -> Places:
    """Those of `addresses` that the CIDRs name; all of a family of which they name none, or /0."""
    networks = [ip_network(text, strict=False) for text in cidrs]
    named = {Family(network.version) for network in networks}
    named -= {Family(network.version) for network in networks if not network.prefixlen}
    accepts = node_port_filter([str(network) for network in networks], {})
    usable = [found for found in addresses if found.scope != _LINK_SCOPE and accepts(found.address)]
    some = {
        family: [format_address(found.address) for found in usable if found.family is family]
        for family in named
    }
    return {family: some.get(family, [everywhere]) for family, everywhere in _ALL.items()}


def _read() -> list[InterfaceAddress]:
    try:
        with Rtnetlink() as netlink:
            return read_addresses(netlink)
    except OSError as error:
        raise ProbeError(f"cannot read addresses by netlink: {error}") from error
