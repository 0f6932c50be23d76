# SPDX-License-Identifier: Apache-2.0
"""The lines of a watch on flows, from the relay to the plugin."""

from typing import Literal

from msgspec import Raw, Struct
from msgspec.json import Decoder, Encoder

from ebpflb.from_json import JsonError
from ebpflb.model.flow import Flow, LostFlows, Name, flow_line


class FollowedNode(Struct, omit_defaults=True):
    """Whether the flows of a node arrive, and if not, why."""

    node: Name
    runs: bool
    why: str = ""


class WatchEvent(Struct):
    """object: a Flow or LostFlows, or a FollowedNode, as JSON."""

    type: Literal["ADDED", "NODE"]
    object: Raw


_encode = Encoder().encode
_decode = Decoder(WatchEvent).decode
_decode_node = Decoder(FollowedNode).decode


def watch_line(found: Flow | LostFlows | FollowedNode) -> bytes:
    """In printable ASCII, as flow_line()."""
    if isinstance(found, FollowedNode):
        return _encode(WatchEvent("NODE", Raw(_encode(found)))) + b"\n"
    return _encode(WatchEvent("ADDED", Raw(flow_line(found)[:-1]))) + b"\n"


def read_watch_line(line: bytes | str) -> FollowedNode | str:
    """A node's state, or the line of a flow for read_flow(). JsonError."""
    try:
        event = _decode(line)
        if event.type == "NODE":
            return _decode_node(event.object)
        return bytes(event.object).decode()
    except (ValueError, RecursionError) as error:
        raise JsonError(str(error)) from None
