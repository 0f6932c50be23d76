# SPDX-License-Identifier: Apache-2.0
"""A stand-in for MetalLB or a cloud: gives each Service that asks for one an address of its own."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from ipaddress import ip_network

from ebpflb.errors import EbpflbError
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.layout import EXTERNAL

_PAUSE_SECONDS = 0.5


@contextmanager
def load_balancer(control: ControlPlane) -> Iterator[None]:
    """Until the end of the context. No address is given twice."""
    ended = threading.Event()
    addresses = map(str, ip_network(EXTERNAL).hosts())

    def serve() -> None:
        while not ended.wait(_PAUSE_SECONDS):
            listed = control.kubectl("get", "services", "-A", "-o", "json")
            for each in json.loads(listed)["items"]:
                is_waiting = not each["status"]["loadBalancer"].get("ingress")
                if each["spec"]["type"] == "LoadBalancer" and is_waiting:
                    _give(control, each["metadata"], next(addresses))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _give(control: ControlPlane, service: dict[str, str], address: str) -> None:
    status = {"status": {"loadBalancer": {"ingress": [{"ip": address}]}}}
    # It may be gone by now.
    with suppress(EbpflbError):
        control.kubectl(
            *("-n", service["namespace"], "patch", "service", service["name"]),
            *("--subresource=status", "--type=merge", "-p", json.dumps(status)),
        )
