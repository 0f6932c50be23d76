# SPDX-License-Identifier: Apache-2.0
"""The Service and the EndpointSlices that a Gateway is to have."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ebpflb.gateway.policy.addresses import AskedAddresses
from ebpflb.gateway.policy.backends import RouteBackend
from ebpflb.gateway.policy.endpoints import WantedPort, wanted_slices
from ebpflb.gateway.policy.found import FoundObjects, Key
from ebpflb.gateway.policy.objects import Gateway, GatewayListener
from ebpflb.words.gateway import (
    GATEWAY_LABEL,
    GROUP,
    MANAGED_BY,
    OURS,
    PROPAGATED,
    SLICE_MANAGED_BY,
)

SERVICE_LABEL = "kubernetes.io/service-name"
_LABEL = re.compile(r"[a-z]([-a-z0-9]{0,61}[a-z0-9])?")
_LONGEST_LABEL = 63

Fields = Mapping[str, Any]


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
            **_metadata(gateway, service_name(gateway)),
            "labels": {MANAGED_BY: OURS, GATEWAY_LABEL: _label(gateway.metadata.name)},
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
            objects[key] = {
                "apiVersion": "discovery.k8s.io/v1",
                "kind": "EndpointSlice",
                "metadata": {
                    **_metadata(gateway, key),
                    "labels": {SERVICE_LABEL: service, SLICE_MANAGED_BY: OURS},
                    "annotations": fields["annotations"],
                },
                **{name: value for name, value in fields.items() if name != "annotations"},
            }
    return objects


def _metadata(gateway: Gateway, key: Key) -> Fields:
    owner = {
        "apiVersion": f"{GROUP}/v1",
        "kind": "Gateway",
        "name": gateway.metadata.name,
        "uid": gateway.metadata.uid,
        "controller": True,
    }
    return {"namespace": key[0], "name": key[1], "ownerReferences": [owner]}


def _label(name: str) -> str:
    """A value of a label; a Gateway's name may be longer."""
    return name[:_LONGEST_LABEL].rstrip("-.")
