# SPDX-License-Identifier: Apache-2.0
"""Regular clients next to the attackers of a module, with connections that stay open throughout."""

from collections.abc import Iterator

import pytest

from ebpflb.lab.manifests import ServiceSpec
from tests.e2e.harness.attackers import Bystanders, bystanders
from tests.e2e.harness.cluster import Cluster


@pytest.fixture(scope="module")
def spec(shared: Cluster) -> Iterator[ServiceSpec]:
    """A Service with pods on both nodes."""
    spec = shared.serve(shared.new("LoadBalancer"), shared.lab.pods)
    yield spec
    shared.remove(spec)


@pytest.fixture(scope="module")
def others(shared: Cluster, spec: ServiceSpec) -> Iterator[Bystanders]:
    with bystanders(shared, spec) as others:
        yield others
