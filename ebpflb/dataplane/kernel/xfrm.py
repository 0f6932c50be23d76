# SPDX-License-Identifier: Apache-2.0
"""IPsec: whether policies apply to outgoing packets."""

import struct
from enum import IntEnum

from ebpflb.dataplane.kernel.modules import has_loaded
from ebpflb.dataplane.kernel.netlink import Netlink, attributes

_NETLINK_XFRM = 6
_FLAGS = bytes(4)
# struct xfrmu_spdinfo starts with the number of policies for `in` and `out`.
_SPD_INFO, _COUNTS = 1, struct.Struct("=II")


class _XfrmRequest(IntEnum):
    """XFRM_MSG_GETSPDINFO of linux/xfrm.h."""

    SPD_INFO = 0x25


def has_output_policies() -> bool:
    """Checks the calling thread's network namespace. OSError."""
    if not has_loaded("xfrm_user", "xfrm_get_spdinfo"):
        return False
    with Netlink(_NETLINK_XFRM) as netlink:
        (answer,) = netlink.request(_XfrmRequest.SPD_INFO, _FLAGS)
    _, output = _COUNTS.unpack_from(attributes(answer, len(_FLAGS))[_SPD_INFO])
    return bool(output)
