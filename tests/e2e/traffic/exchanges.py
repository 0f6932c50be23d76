# SPDX-License-Identifier: Apache-2.0
"""Exchanges of one datagram and its reply at a rate, each from another port of the client.

As a script: prints the number without a reply for ten seconds.
"""

import asyncio
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ebpflb.lab import Member

_FIRST, _LAST = 1024, 65535
_PATIENCE = 10.0
_PIECE = 20
# After a stall of this process, lost time is not made up for: a port is reused once it has been
# idle for two seconds.
_LATE = 0.2
_START = 60


def lost_exchanges(member: "Member", address: str, port: int, *, rate: int, count: int) -> int:
    """How many of this many exchanges of a member, `rate` per second, fail."""
    numbers = map(str, (port, rate, count))
    script = [sys.executable, "-I", "-S", __file__]
    result = member.exec([*script, address, *numbers], timeout=_START + 2 * count / rate)
    return int(result.stdout)


class _Exchange(asyncio.DatagramProtocol):
    """Closes the socket on a reply; `waiting` counts those without one."""

    waiting = 0

    def connection_made(self, transport: Any) -> None:
        type(self).waiting += 1
        self._transport = transport
        transport.sendto(b"who")

    def datagram_received(self, _payload: bytes, _address: Any) -> None:
        self._close()

    def error_received(self, _error: Exception) -> None:
        pass

    def _close(self) -> None:
        if not self._transport.is_closing():
            type(self).waiting -= 1
            self._transport.close()


async def _run(address: str, port: int, rate: int, count: int) -> int:
    loop = asyncio.get_running_loop()
    wildcard = "::" if ":" in address else "0.0.0.0"
    began, made = time.monotonic(), []
    for number in range(count):
        own = _FIRST + number % (_LAST - _FIRST + 1)
        made.append(
            await loop.create_datagram_endpoint(
                _Exchange, local_addr=(wildcard, own), remote_addr=(address, port)
            )
        )
        if number % _PIECE == 0:
            early = began + number / rate - time.monotonic()
            began -= early if early < -_LATE else 0.0
            await asyncio.sleep(max(0.0, early))
        if len(made) > rate * _PATIENCE:
            made.pop(0)[0].close()
    end = time.monotonic() + _PATIENCE
    while _Exchange.waiting and time.monotonic() < end:
        await asyncio.sleep(_LATE)
    return _Exchange.waiting


if __name__ == "__main__":
    print(asyncio.run(_run(sys.argv[1], *map(int, sys.argv[2:]))))
