# SPDX-License-Identifier: Apache-2.0
"""XDP features of drivers, reported by the kernel since Linux 6.3 (generic netlink, "netdev")."""

from enum import IntFlag

_DEVICE_GET = 1
_VERSION = 1


class XdpFeature(IntFlag):
    """The part of enum netdev_xdp_act of linux/netdev.h that is used.

    NDO_XMIT: sends frames redirected by programs at other devices.
    """

    BASIC = 1
    REDIRECT = 2
    NDO_XMIT = 4


def xdp_features(ifindexes: list[int]) -> dict[int, XdpFeature] | None:
    """By device, of those that exist; None if the kernel does not report them. OSError."""
    # Imported here, as in rtnetlink.py.
    from pyroute2.netlink import NLM_F_REQUEST, genlmsg
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.netlink.generic import GenericNetlinkSocket

    class _Device(genlmsg):  # type: ignore[misc]
        nla_map = (
            ("NETDEV_A_DEV_UNSPEC", "none"),
            ("NETDEV_A_DEV_IFINDEX", "uint32"),
            ("NETDEV_A_DEV_PAD", "none"),
            ("NETDEV_A_DEV_XDP_FEATURES", "uint64"),
        )

    found = {}
    with GenericNetlinkSocket() as netdev:
        try:
            netdev.bind("netdev", _Device)
        except NetlinkError:
            return None
        for ifindex in ifindexes:
            request = _Device()
            request["cmd"], request["version"] = _DEVICE_GET, _VERSION
            request["attrs"] = [("NETDEV_A_DEV_IFINDEX", ifindex)]
            try:
                (answer,) = netdev.nlm_request(
                    request, msg_type=netdev.prid, msg_flags=NLM_F_REQUEST
                )
            except NetlinkError:
                continue
            found[ifindex] = XdpFeature(answer.get_attr("NETDEV_A_DEV_XDP_FEATURES") or 0)
    return found
