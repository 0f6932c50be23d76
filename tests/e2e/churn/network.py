# SPDX-License-Identifier: Apache-2.0
"""Devices and addresses that are added to and removed from a node."""

from random import Random

from ebpflb.lab import LabNode, Member

_PAIRS, _BRIDGES = range(4), range(4)
_ADDRESSES = ("192.0.2.{}/32", "2001:db8:9::{}/128")


class ChangingDevices:
    """Additional veths of a pod, and bridges, with addresses, on one node."""

    def __init__(self, node: LabNode, pod: Member) -> None:
        self._node, self._pod = node, pod
        self._devices: set[str] = set()
        self._addresses: set[tuple[str, str]] = set()

    def change(self, chance: Random) -> None:
        """Add or remove a device, or an address of one."""
        step = chance.randrange(4)
        if step == 0:
            self._switch(f"churn-v{chance.choice(_PAIRS)}", "veth")
        elif step == 1:
            self._switch(f"churn-b{chance.choice(_BRIDGES)}", "bridge")
        else:
            address = chance.choice(_ADDRESSES).format(chance.randrange(100, 240))
            self._switch_address(chance.choice(["eth0", *sorted(self._devices)]), address)

    def clear(self) -> None:
        """Remove everything that was added."""
        for device, address in sorted(self._addresses):
            self._ip("addr", "del", address, "dev", device)
        self._addresses.clear()
        for device in sorted(self._devices):
            self._ip("link", "del", device)
        self._devices.clear()

    def _switch(self, device: str, kind: str) -> None:
        if device in self._devices:
            self._ip("link", "del", device)
            self._devices.remove(device)
            self._addresses = {each for each in self._addresses if each[0] != device}
            return
        inside = ["peer", "name", f"{device}-peer", "netns", self._pod.namespace.name]
        peer = inside if kind == "veth" else []
        self._ip("link", "add", device, "type", kind, *peer)
        self._devices.add(device)
        self._ip("link", "set", device, "up")

    def _switch_address(self, device: str, address: str) -> None:
        if (device, address) in self._addresses:
            self._ip("addr", "del", address, "dev", device)
            self._addresses.remove((device, address))
        else:
            nodad = ["nodad"] if ":" in address else []
            self._ip("addr", "add", address, "dev", device, *nodad)
            self._addresses.add((device, address))

    def _ip(self, *arguments: str) -> None:
        self._node.exec(["ip", *arguments])
