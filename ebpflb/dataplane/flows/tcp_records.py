# SPDX-License-Identifier: Apache-2.0
"""The TCP connections that were translated at the socket."""

from collections.abc import Iterator
from sys import byteorder

from ebpflb.dataplane.kernel.maps import MapSet
from ebpflb.dataplane.layout.structs import LbConnection, LbConnPlace


def tcp_records(maps: MapSet, to: bytes = b"") -> Iterator[tuple[int, LbConnection]]:
    """Cookie and record of each TCP socket that was translated. MapError.

    `to`: an address; without most that do not have it.
    """
    for _, value in maps["lb_conn_places"].items():
        if to in value:
            place = LbConnPlace.from_buffer_copy(value)
            if place.cookie:
                yield place.cookie, place.connection
    for key, value in maps["lb_connections"].items():
        if to in value:
            yield int.from_bytes(key, byteorder), LbConnection.from_buffer_copy(value)
