# SPDX-License-Identifier: Apache-2.0
"""The MCS API of the version that is tested: its definitions."""

from tests.cluster.harness.binaries import module_folder
from tests.cluster.harness.control_plane import ControlPlane

VERSION = "v0.5.2"


def install(control: ControlPlane) -> None:
    """Create the definitions, and wait until they are served."""
    folder = module_folder("multicluster", f"sigs.k8s.io/mcs-api@{VERSION}") / "config/crd"
    control.kubectl("apply", "--server-side", "-f", str(folder))
    control.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
