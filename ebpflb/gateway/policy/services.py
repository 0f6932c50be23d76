# SPDX-License-Identifier: Apache-2.0
"""The Service and the EndpointSlices that a Gateway is to have."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ebpflb.gateway.policy.addresses import AskedAddresses
from ebpflb.gateway.policy.backends import RouteBackend
from ebpflb.gateway.policy.endpoints import WantedPort, wanted_slices
from ebpflb.gateway.policy.found import FoundObjects, Key
from ebpflb.gateway.policy.objects import Gateway, GatewayListener
from ebpflb.gateway.policy.owned import Fields, label_value, owned_metadata, slice_of
from ebpflb.words.gateway import GATEWAY_LABEL, GROUP, MANAGED_BY, OURS, PROPAGATED

_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_KIND = f"{GROUP}/v1", "Gateway"


class WantedObjects(NamedTuple):
    """Whole objects, by namespace and name."""

    services: dict[Key, Fields]
    slices: dict[Key, Fields]


def service_name(gateway: Gateway) -> Key:
    """As Gateway API recommends, GATEWAY-CLASS, where that is a name of a Service."""
    name = f"{gateway.metadata.name}-{gateway.spec.gateway_class_name}"
    if not _LABEL.fullmatch(name):
        name = f"gateway-{hashlib.sha256(name.encode()).hexdigest()[:16]}"
    return gateway.metadata.namespace, name


def port_of(listener: GatewayListener) -> WantedPort:
    name = f"{listener.protocol.lower()}-{listener.port}"
    return WantedPort(name, listener.protocol, listener.port)


def service_object(gateway: Gateway, asked: AskedAddresses, ports: Sequence[WantedPort]) -> Fields:
    own = (gateway.spec.infrastructure and gateway.spec.infrastructure.annotations) or {}
    annotations = {**own, PROPAGATED: " ".join(sorted(own))} if own else {}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {
            **owned_metadata(_KIND, gateway, service_name(gateway)),
            "labels": {MANAGED_BY: OURS, GATEWAY_LABEL: label_value(gateway.metadata.name)},
            "annotations": annotations,
        },
        "spec": {
            "type": "ClusterIP" if asked.static else "LoadBalancer",
            "ipFamilyPolicy": "PreferDualStack",
            "externalIPs": list(asked.static),
            "loadBalancerIP": asked.requested,
            "ports": [
                {"name": each.name, "protocol": each.protocol, "port": each.number}
                for each in ports
            ],
        },
    }


def slice_objects(
    gateway: Gateway,
    served: Mapping[WantedPort, Sequence[RouteBackend]],
    found: FoundObjects,
) -> Mapping[Key, Fields]:
    """`served`: the backends of each port."""
    namespace, service = service_name(gateway)
    objects = {}
    for port, backends in served.items():
        for number, fields in wanted_slices(port, backends, found):
            key = namespace, f"{service}-{number}"
            objects[key] = slice_of(_KIND, gateway, key, service, fields)
    return objects
