# SPDX-License-Identifier: Apache-2.0
"""Moves UDP flows out of lb_ct_short, where releases before 0.2 keep them.

While any hook may still run programs of such a release, new programs put UDP flows there as well.
Once all hooks have moved, two flags of lb_settings tell the programs that new flows go to lb_ct_udp
and, later, that lb_ct_short need not be searched. A new generation starts with the flags of the old
one.
"""

from collections.abc import Callable
from errno import E2BIG, EEXIST

from ebpflb.dataplane.flows.conntrack import PROTOCOL_AT, reverse
from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import BpfMap, MapSet
from ebpflb.dataplane.kernel.uapi import Exist
from ebpflb.dataplane.layout.enums import CtState, Hook, SettingFlag
from ebpflb.dataplane.layout.structs import LbConntrack, LbSettings
from ebpflb.errors import MapError
from ebpflb.model.address import Protocol

_KEY = bytes(4)
_APART, _MOVED = SettingFlag.LB_SETTING_UDP_APART, SettingFlag.LB_SETTING_UDP_MOVED
# LB_UDP_EXCHANGE of bpf/ct_state.h.
_EXCHANGE_NS = 2_000_000_000


def flags_of_udp(settings: BpfMap) -> SettingFlag:
    """The flags in lb_settings that say where UDP flows are. MapError."""
    value = settings.lookup(_KEY) or bytes(settings.value_size)
    return SettingFlag(LbSettings.from_buffer_copy(value).flags) & (_APART | _MOVED)


def move_udp_flows(maps: MapSet, wait: Callable[[], None] = membarrier) -> None:
    """Call it when all hooks run programs that know lb_ct_udp. MapError.

    `wait` returns once all programs that began before the call have ended.
    """
    settings = maps["lb_settings"]
    if flags_of_udp(settings) & _MOVED:
        return
    _set_flag(settings, _APART)
    wait()
    _move(maps)
    _set_flag(settings, _MOVED)


def _set_flag(settings: BpfMap, flag: SettingFlag) -> None:
    value = LbSettings.from_buffer_copy(settings.lookup(_KEY) or bytes(settings.value_size))
    value.flags |= flag
    settings.update(_KEY, bytes(value))


def _move(maps: MapSet) -> None:
    flows = {
        key: LbConntrack.from_buffer_copy(value)
        for key, value in maps["lb_ct_short"].items()
        if key[PROTOCOL_AT] == Protocol.UDP
    }
    for key, entry in flows.items():
        if _is_settled(entry, flows.get(reverse(bytes(entry.to)))):
            settled = LbConntrack.from_buffer_copy(entry)
            settled.state |= CtState.LB_CT_ESTABLISHED
            if _insert(maps["lb_ct_stream"], key, settled):
                continue
        _insert(maps["lb_ct_udp"], key, entry)
    maps["lb_ct_short"].delete_batch(list(flows))


def _is_settled(entry: LbConntrack, other: LbConntrack | None) -> bool:
    """Whether it is a stream, or reserved for other NAT."""
    if entry.hook == Hook.LB_HOOK_RESERVED or other is None:
        return bool(entry.hook == Hook.LB_HOOK_RESERVED)
    seconds = max(entry.last_seen, other.last_seen) - entry.created
    return bool((entry.state | other.state) & CtState.LB_CT_ACK and seconds > _EXCHANGE_NS)


def _insert(table: BpfMap, key: bytes, entry: LbConntrack) -> bool:
    """Whether the table has the key now."""
    try:
        table.update(key, bytes(entry), exist=Exist.NO)
    except MapError as error:
        if error.errno not in (EEXIST, E2BIG):
            raise
        return bool(error.errno == EEXIST)
    return True
