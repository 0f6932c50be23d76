# SPDX-License-Identifier: Apache-2.0
"""Gateway API's own conformance tests for TCP and UDP, with the chart in a cluster of two nodes.

What they say is in docs/reference/gateway-api.md, which must say the same.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ebpflb import __version__
from tests.cluster.gateway import gateway_api
from tests.cluster.gateway.load_balancer import load_balancer
from tests.cluster.harness import release
from tests.cluster.harness.binaries import built
from tests.cluster.harness.cluster import Cluster
from tests.image.build import image_archive

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/reference/gateway-api.md"
PROFILES = ("GATEWAY-TCP", "GATEWAY-UDP")
# Their Gateways have listeners of HTTP, HTTPS or TLS alone.
NEED_HTTP = (
    *("GatewayInvalidRouteKind", "GatewayInvalidTLSConfiguration", "GatewayModifyListeners"),
    *("GatewayListenerUnsupportedProtocol", "GatewayObservedGenerationBump"),
    *("GatewaySecretInvalidReferenceGrant", "GatewaySecretMissingReferenceGrant"),
    *("GatewaySecretReferenceGrantAllInNamespace", "GatewaySecretReferenceGrantSpecific"),
    "TCPRouteInvalidNonTCPListener",
)
SECONDS = 1500


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """With the chart's agents and controller, and a load balancer."""
    made = Cluster.up(f"conform-{os.getpid()}")
    try:
        gateway_api.install(made.control_plane)
        for image in gateway_api.IMAGES:
            made.load_image(image.write(made.control_plane.layout.folder / "images"))
        made.load_image(image_archive())
        release.deploy(made, "install", release.values(made, gateway={"enabled": True}))
        with load_balancer(made.control_plane):
            yield made
    finally:
        made.down()


def documented() -> dict[str, str]:
    """Test -> what the page says of it."""
    return dict(re.findall(r"^\| `(\w+)` \| (\w+)", PAGE.read_text(), re.MULTILINE))


def told(report: dict[str, Any], log: str) -> dict[str, str]:
    """Test -> passed, failed or skipped."""
    skipped = {
        name for profile in report["profiles"] for name in profile["core"].get("skippedTests", ())
    }
    ran = re.findall(r"^    --- (PASS|FAIL): TestConformance/(\w+) ", log, re.MULTILINE)
    found = {name: "passed" if end == "PASS" else "failed" for end, name in ran}
    return {**found, **dict.fromkeys(skipped, "skipped")}


@pytest.mark.slow
@pytest.mark.timeout(SECONDS)
def test_the_profiles_for_tcp_and_udp_are_as_the_page_says(cluster: Cluster, tmp_path: Path):
    program = built("gateway-conformance", gateway_api.CONFORMANCE)
    report, log = tmp_path / "report.yaml", tmp_path / "log"
    options = {
        "gateway-class": "ebpflb",
        "conformance-profiles": ",".join(PROFILES),
        "skip-tests": ",".join(NEED_HTTP),
        "report-output": report,
        "organization": "ebpflb",
        "project": "ebpflb",
        "version": __version__,
        "url": "https://ebpflb.invalid",
        "contact": "ebpflb",
    }
    flags = [f"-{name}={value}" for name, value in options.items()]
    with log.open("w") as output:
        process = cluster.client.popen(
            [program, "-test.v", f"-test.timeout={SECONDS}s", *flags],
            env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)},
            stdout=output,
            stderr=output,
        )
        process.wait()
    assert report.exists(), log.read_text()[-4000:]
    found = told(yaml.safe_load(report.read_text()), log.read_text())
    assert found == documented(), log.read_text()[-4000:]
