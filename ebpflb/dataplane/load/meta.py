# SPDX-License-Identifier: Apache-2.0
"""lb_meta: what the pins of a generation were made from."""

import ctypes

from ebpflb.dataplane.kernel.maps import open_maps
from ebpflb.dataplane.layout.structs import FLOW_VERSION, META_MAGIC, Meta
from ebpflb.dataplane.load.pins import Generation

_KEY = bytes(4)


def read_meta(generation: Generation) -> Meta | None:
    """None when there is none, or it is not ours."""
    maps = open_maps(generation.maps)
    value = maps["lb_meta"].lookup(_KEY) if "lb_meta" in maps else None
    if value is None or len(value) != ctypes.sizeof(Meta):
        return None
    meta = Meta.from_buffer_copy(value)
    return meta if meta.magic == META_MAGIC else None


def write_meta(generation: Generation, source: bytes) -> None:
    """`source`: the hash of what was compiled."""
    meta = Meta(magic=META_MAGIC, layout=generation.layout, flows=FLOW_VERSION)
    meta.source[:] = source
    open_maps(generation.maps)["lb_meta"].update(_KEY, bytes(meta))
