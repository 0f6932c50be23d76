# SPDX-License-Identifier: Apache-2.0
"""Names of Gateway API and of the MCS API, and of what is made of their objects."""

GROUP = "gateway.networking.k8s.io"
CONTROLLER = "ebpflb.io/ebpflb"
"""The controllerName of GatewayClasses."""

MANAGED_BY = "app.kubernetes.io/managed-by"
SLICE_MANAGED_BY = "endpointslice.kubernetes.io/managed-by"
OURS = "gateway.ebpflb.io"
"""The value of both labels."""
GATEWAY_LABEL = f"{GROUP}/gateway-name"
PROPAGATED = "gateway.ebpflb.io/annotations"
"""On a Service: the names of the annotations that it has from its Gateway, separated by spaces."""

ROUTE_OF = {"TCP": "TCPRoute", "UDP": "UDPRoute"}
"""The kind of the routes of a protocol."""
FEATURES = ("Gateway", "ReferenceGrant", "TCPRoute", "UDPRoute")

MULTICLUSTER = "multicluster.x-k8s.io"
IMPORT_LABEL = "multicluster.kubernetes.io/service-name"
"""On imported EndpointSlices: the name of their ServiceImport."""
