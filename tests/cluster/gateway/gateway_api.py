# SPDX-License-Identifier: Apache-2.0
"""Gateway API of the version that is tested: its definitions, our controller, its own tests."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tests.cluster.harness.binaries import Recipe, module_folder
from tests.cluster.harness.control_plane import ControlPlane
from tests.cluster.harness.images import Image
from tests.cluster.harness.place import Daemon

VERSION = "v1.6.3"

_SMALL = ("-ldflags", "-s -w")
_MODULE = "sigs.k8s.io/gateway-api"
_ECHO = Recipe(f"{_MODULE}/conformance/echo-basic", "gateway", _SMALL)
CONFORMANCE = Recipe(".", "gateway", _SMALL, tests=True)
# By the names that are in the manifests of the tests.
IMAGES = (
    *(
        Image(f"registry.k8s.io/gateway-api/echo-basic:{tag}", "echo-basic", recipe=_ECHO)
        for tag in ("v1.5.1", "v1.6.0-dev.2", "v1.6.0-dev.3")
    ),
    Image("registry.k8s.io/coredns/coredns:v1.12.2", "coredns"),
)


def install(control: ControlPlane) -> None:
    """Create the definitions of the standard channel, and wait until they are served."""
    folder = module_folder("gateway", f"{_MODULE}@{VERSION}") / "config/crd/standard"
    control.kubectl("apply", "--server-side", "-f", str(folder))
    control.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")


@contextmanager
def running_controller(
    control: ControlPlane, *ranges: str, apis: tuple[str, ...] = ("gateway",)
) -> Iterator[Daemon]:
    """`ebpflb gateway` beside the API server, with admin rights."""
    options = [f"--kubeconfig={control.kubeconfig}", "--namespace=kube-system", "-v"]
    options += [f"--address-range={each}" for each in ranges]
    options += [f"--api={each}" for each in apis]
    command = [sys.executable, "-m", "ebpflb", "gateway", *options]
    daemon = control.place.start(f"gateway-{os.getpid()}", command)
    try:
        yield daemon
        daemon.check()
    finally:
        daemon.stop()
