# SPDX-License-Identifier: Apache-2.0
"""The controller at an API server in memory, until it has nothing left to do."""

from ebpflb.gateway.controller import GatewayController
from ebpflb.gateway.lease import Lease
from tests.unit.gateway.world import RANGES


def controller(api):
    return GatewayController(api, api.store, Lease(api, "own", "lease", "me"), RANGES)


def settled(api):
    """Reconciles until nothing is left to do, which takes a few times."""
    made = controller(api)
    for _ in range(5):
        before = len(api.written)
        made.reconcile()
        if not [each for each in api.written[before:] if "leases" not in each[1]]:
            return made
    raise AssertionError(api.written)


def slices(api):
    return [
        each
        for each in api.objects.values()
        if each["kind"] == "EndpointSlice"
        and "labels" in each["metadata"]
        and "endpointslice.kubernetes.io/managed-by" in each["metadata"]["labels"]
    ]
