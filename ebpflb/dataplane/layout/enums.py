# SPDX-License-Identifier: Apache-2.0
"""Mirrors the enums in bpf/types.h, what it includes, and scheduler.h: same names, same values."""

from collections.abc import Mapping
from enum import Enum, IntEnum, IntFlag
from typing import TypeVar

from ebpflb.words.scheduler import Scheduler

EnumType = type[IntEnum] | type[IntFlag]
Member = TypeVar("Member", bound=Enum)


class FrontendTypeCode(IntEnum):
    LB_CLUSTER_IP = 1
    LB_NODE_PORT = 2
    LB_EXTERNAL_IP = 3
    LB_LOAD_BALANCER = 4


class IfEmptyCode(IntEnum):
    LB_EMPTY_REFUSE = 1
    LB_EMPTY_DROP = 2
    LB_EMPTY_PASS = 3


class DescFlag(IntFlag):
    LB_DESC_INTERNAL_LOCAL = 1
    LB_DESC_EXTERNAL_LOCAL = 2
    LB_DESC_SOURCE_RANGES = 4
    LB_DESC_MASQUERADE = 8
    LB_DESC_COUNTS_OPEN = 16
    LB_DESC_DSR = 32
    LB_DESC_SPILLS = 512
    LB_DESC_ON_BACKUP = 1024
    LB_DESC_TIMED = 2048
    LB_DESC_UNSERVED_REJECT = 256
    LB_DESC_UNSERVED_DROP = 4096
    LB_DESC_UNSERVED_PASS = 8192
    LB_DESC_ECHO = 16384
    LB_DESC_RETRY = 64
    LB_DESC_LIMITS = 128


class SchedulerCode(IntEnum):
    """enum lb_scheduler: the words of Scheduler, in their order."""

    _ignore_ = "number each"
    for number, each in enumerate(Scheduler):
        vars()[f"LB_SCHEDULER_{each.name}"] = number


class BackendFlag(IntFlag):
    LB_BACKEND_LOCAL = 1
    LB_BACKEND_TERMINATING = 2
    LB_BACKEND_USABLE = 4
    LB_BACKEND_SERVING = 8
    LB_BACKEND_WATCHED = 16
    LB_BACKEND_EJECTED = 32
    LB_BACKEND_TRIAL = 64


class LimitFlag(IntFlag):
    LB_LIMIT_OPEN_DROPS = 1
    LB_LIMIT_CLIENT_OPEN_DROPS = 2
    LB_LIMIT_CLIENT_NEW_DROPS = 4


class SocketPriority(IntEnum):
    LB_SOCKET_OF_AGENT = 0x65620000


class AddrFlag(IntFlag):
    LB_ADDR_CLUSTER_IP = 1
    LB_ADDR_EXTERNAL = 2
    LB_ADDR_NODE = 4
    LB_ADDR_NODE_PORT = 8
    LB_ADDR_EXTERNAL_PORT = 16
    LB_ADDR_UNSERVED_DROP = 32
    LB_ADDR_UNSERVED_REJECT = 64
    LB_ADDR_UNSERVED_PASS = 128
    LB_ADDR_ECHO = 256


class DeviceKind(IntEnum):
    LB_DEVICE_HOST = 1
    LB_DEVICE_WORKLOAD = 2


class DeviceFlag(IntFlag):
    LB_DEVICE_ETHERNET = 1
    LB_DEVICE_SUBNETS = 2
    LB_DEVICE_XDP = 4
    LB_DEVICE_XDP_SENDS = 8
    LB_DEVICE_XDP_STALLS = 16


class NetnsFlag(IntFlag):
    LB_NETNS_HOST = 1
    LB_NETNS_COVERED = 2
    LB_NETNS_TC_ONLY = 4


class SettingFlag(IntFlag):
    LB_SETTING_SOCKET_HOST = 1
    LB_SETTING_LOCALHOST = 2
    LB_SETTING_TC_ONLY_PODS = 4
    LB_SETTING_HOLD = 8
    LB_SETTING_VIA_STACK = 16
    LB_SETTING_BESIDE = 32
    LB_SETTING_DIVERT = 64
    LB_SETTING_SHARED_PORTS = 128
    LB_SETTING_LOCALHOST6 = 256
    LB_SETTING_RESETS = 512


class Direction(IntEnum):
    LB_DIR_NONE = 0
    LB_DIR_ORIGINAL = 1
    LB_DIR_REPLY = 2


class Hook(IntEnum):
    LB_HOOK_RESERVED = 0
    LB_HOOK_HOST_INGRESS = 1
    LB_HOOK_HOST_EGRESS = 2
    LB_HOOK_POD_INGRESS = 3
    LB_HOOK_POD_EGRESS = 4


class CtState(IntFlag):
    LB_CT_SYN = 1
    LB_CT_ACK = 2
    LB_CT_OTHER_FIN = 4
    LB_CT_CLOSED = 8
    LB_CT_ESTABLISHED = 16
    LB_CT_FIN_ACKED = 32
    LB_CT_RETRIED = 64
    LB_CT_ENDED = 128


class CtFlag(IntFlag):
    LB_CT_SNAT = 1
    LB_CT_HAIRPIN = 2
    LB_CT_TO_HOST = 4
    LB_CT_SAMPLED = 8
    LB_CT_TO_POD = 16
    LB_CT_UNANSWERED = 32
    LB_CT_DSR = 64
    LB_CT_TUNNELED = 128


class ConnectionState(IntFlag):
    LB_CONN_SAMPLED = 1
    LB_CONN_ESTABLISHED = 2
    LB_CONN_FIN_ACKED = 4
    LB_CONN_PEER_FIN = 8
    LB_CONN_TIMED_OUT = 16
    LB_CONN_UNANSWERED = 32


class DropReason(IntEnum):
    """enum lb_drop_reason, without the final count. docs/reference/words.md says what to do."""

    sentence: str
    """What it means, for users."""

    def __new__(cls, value: int, sentence: str = "") -> "DropReason":
        """With the sentence."""
        member = int.__new__(cls, value)
        member._value_ = value
        member.sentence = sentence
        return member

    LB_DROP_NO_ENDPOINT = 1, "no usable endpoint"
    LB_DROP_NO_LOCAL_ENDPOINT = 2, "only other nodes have a usable endpoint: traffic policy Local"
    LB_DROP_UNKNOWN_PORT = 3, "an address of Services, none of which has this port"
    LB_DROP_SNAT_PORTS = 4, "this node has no free source port towards the backend"
    LB_DROP_CONNTRACK_FULL = 5, "the table of flows has no room for another one"
    LB_DROP_TTL_EXCEEDED = 6, "the packet's TTL or hop limit ends at this node"
    LB_DROP_TOO_BIG = 7, "the packet is too big for the way to the backend"
    LB_DROP_NO_ROUTE = 8, "this node has no route to any of the backends"
    LB_DROP_NO_SNAT_ADDRESS = 9, "this node has no address to masquerade with"
    LB_DROP_REWRITE = 10, "the packet cannot be rewritten"
    LB_DROP_SOURCE_RANGE = 11, "the client is outside the source ranges"
    LB_DROP_UNUSED_ADDRESS = 12, "inside a ServiceCIDR, but not the address of a Service"
    LB_DROP_LOOP = 13, "the endpoint is a Service's address, which leads back here"
    LB_DROP_TUNNEL = (
        14,
        "it came to the DSR port, but not from a node of the cluster, or from the middle "
        "of a connection that this node does not know",
    )
    LB_DROP_TUNNEL_KEY = (
        15,
        "it came from a node to the DSR port, but with no key that this node accepts",
    )
    LB_DROP_UNKNOWN_CONNECTION = 16, "of a connection to a Service that this node does not know"
    LB_DROP_UNSERVED_PORT = 17, "no Service at the address has this port, and one says drop"
    LB_DROP_ECHO = 18, "more pings to addresses of Services than this node answers"
    LB_DROP_BACKENDS_FULL = 19, "the endpoints have as many connections as the Service allows each"
    LB_DROP_CLIENT_OPEN = 20, "the client has as many open connections as the Service allows"
    LB_DROP_CLIENT_NEW = 21, "the client opens connections faster than the Service allows"


class DropPlace(IntEnum):
    LB_DROP_AT_SOCKET = 0
    LB_DROP_AT_POD = 0x7FFFFFFF


class FlowPath(IntEnum):
    """enum lb_path."""

    LB_PATH_SOCKET = 1
    LB_PATH_TC = 2


class FlowEvent(IntEnum):
    LB_FLOW_START = 1
    LB_FLOW_END = 2
    LB_FLOW_REFUSED = 3
    LB_FLOW_DROPPED = 4


class FlowEnd(IntEnum):
    LB_END_CLOSED = 1
    LB_END_RESET = 2
    LB_END_TIMED_OUT = 3
    LB_END_NO_ANSWER = 4
    LB_END_BACKEND_REFUSED = 5
    LB_END_REPLACED = 6
    LB_END_RETRIED = 7


class FlowSource(IntEnum):
    LB_FROM_THIS_NODE = 1
    LB_FROM_ELSEWHERE = 2


class FlowLost(IntEnum):
    """enum lb_flow_lost, without the final count."""

    LB_LOST_FULL = 0
    LB_LOST_RATE = 1


class XdpResult(IntEnum):
    """enum lb_xdp_result, without the final count."""

    LB_XDP_SENT = 0
    LB_XDP_FRAGMENT = 1
    LB_XDP_HEADER = 2
    LB_XDP_PROTOCOL = 3
    LB_XDP_CHECKSUM = 4
    LB_XDP_LOCAL = 5
    LB_XDP_ROUTE = 6
    LB_XDP_NEIGHBOUR = 7
    LB_XDP_DEVICE = 8
    LB_XDP_REFUSED = 9
    LB_XDP_STACK = 10


class HistogramKind(IntEnum):
    """enum lb_histogram_kind, without the final count."""

    LB_HISTOGRAM_DURATION = 0
    LB_HISTOGRAM_RTT = 1
    LB_HISTOGRAM_BYTES = 2


PREFIXES: Mapping[EnumType, str] = {
    FrontendTypeCode: "LB_",
    IfEmptyCode: "LB_EMPTY_",
    DescFlag: "LB_DESC_",
    SchedulerCode: "LB_SCHEDULER_",
    BackendFlag: "LB_BACKEND_",
    LimitFlag: "LB_LIMIT_",
    SocketPriority: "LB_SOCKET_",
    AddrFlag: "LB_ADDR_",
    DeviceKind: "LB_DEVICE_",
    DeviceFlag: "LB_DEVICE_",
    XdpResult: "LB_XDP_",
    NetnsFlag: "LB_NETNS_",
    SettingFlag: "LB_SETTING_",
    Direction: "LB_DIR_",
    Hook: "LB_HOOK_",
    CtState: "LB_CT_",
    CtFlag: "LB_CT_",
    ConnectionState: "LB_CONN_",
    DropReason: "LB_DROP_",
    DropPlace: "LB_DROP_",
    FlowPath: "LB_PATH_",
    FlowEvent: "LB_FLOW_",
    FlowEnd: "LB_END_",
    FlowSource: "LB_FROM_",
    FlowLost: "LB_LOST_",
    HistogramKind: "LB_HISTOGRAM_",
}
"""Every enum shared with bpf/, with the common prefix of its members."""


def codes(words: type[Member], mirror: type[IntEnum]) -> Mapping[Member, int]:
    """For each member of an enum of the model, the number of its namesake in bpf/."""
    prefix = PREFIXES[mirror]
    return {each: int(mirror[prefix + each.name]) for each in words}


def word(member: IntEnum | IntFlag) -> str:
    """The name of a member in lower case, without the common prefix."""
    return (member.name or "").removeprefix(PREFIXES.get(type(member), "")).lower()
