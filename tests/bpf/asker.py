# SPDX-License-Identifier: Apache-2.0
"""A process in a cgroup that connects, and sees where the kernel would have it go.

No packet is sent: a TCP socket under repair is connected at once. The hook of getpeername is not
attached there, or it would show the frontend.
"""

import errno
import json
import socket
import subprocess
import sys
from pathlib import Path
from sys import byteorder

from ebpflb.dataplane.enums import NetnsFlag
from ebpflb.dataplane.maps import MapSet
from ebpflb.dataplane.netns import own_cookie
from ebpflb.dataplane.structs import Netns
from ebpflb.model.address import Protocol
from tests.bpf.packets import End

_TCP_REPAIR = 19


class Asker:
    """The other end of the process; it runs in the network namespace of who makes it."""

    def __init__(self, cgroup: Path) -> None:
        command = [sys.executable, "-m", "tests.bpf.asker", str(cgroup)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def close(self) -> None:
        """End the process."""
        self._process.communicate(timeout=10)

    def connect(self, target: End, proto: Protocol) -> End | int:
        """Where the socket is connected to, or the errno."""
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        print(json.dumps([*target, proto]), file=stdin, flush=True)
        found = json.loads(stdout.readline())
        return found if isinstance(found, int) else End(*found)


def say_who_asks(maps: MapSet, flags: NetnsFlag | int) -> None:
    """What the socket hooks take the process for; without flags, a pod that is not known."""
    key = own_cookie().to_bytes(8, byteorder)
    maps["lb_netns"].delete(key)
    if flags:
        maps["lb_netns"].update(key, bytes(Netns(flags=flags)))


def _connect(address: str, port: int, proto: int) -> End | int:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    kind = socket.SOCK_STREAM if proto == Protocol.TCP else socket.SOCK_DGRAM
    with socket.socket(family, kind) as client:
        if proto == Protocol.TCP:
            client.setsockopt(socket.IPPROTO_TCP, _TCP_REPAIR, 1)
        try:
            client.connect((address, port))
        except OSError as error:
            return error.errno or errno.EIO
        return End(*client.getpeername()[:2])


def _main(cgroup: str) -> None:
    Path(cgroup, "cgroup.procs").write_text("0")
    for line in sys.stdin:
        print(json.dumps(_connect(*json.loads(line))), flush=True)


if __name__ == "__main__":
    _main(sys.argv[1])
