# SPDX-License-Identifier: Apache-2.0
"""The zones of nodes and of backends, according to the API server."""

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import quote

from ebpflb.errors import SourceError
from ebpflb.kubectl.access import JSON, METADATA, Access, ForbiddenError
from ebpflb.model.address import format_address
from ebpflb.model.endpoint import EndpointSlice
from ebpflb.model.node import Node
from ebpflb.model.objects.kinds import ApiObject, Kind
from ebpflb.source.decode import decode


class KnownZones(NamedTuple):
    """of_nodes: by name. of_backends: by namespace and address. "" where there is none."""

    of_nodes: Mapping[str, str]
    of_backends: Mapping[tuple[str, str], str]


def known_zones(access: Access, namespace: str) -> KnownZones:
    """`namespace`: of the backends; empty for all. ClusterError."""
    place = f"namespaces/{quote(namespace, safe='')}/" if namespace else ""
    slices = f"/apis/discovery.k8s.io/v1/{place}endpointslices"
    nodes, backends = dict[str, str](), dict[tuple[str, str], str]()
    try:
        for node in _objects(access, "/api/v1/nodes", Kind.NODE, METADATA):
            if isinstance(node, Node):
                nodes[node.name] = node.zone
        for piece in _objects(access, slices, Kind.ENDPOINT_SLICE):
            if isinstance(piece, EndpointSlice):
                for each in piece.endpoints:
                    backends[piece.namespace, format_address(each.address)] = each.zone
    except ForbiddenError as error:
        raise ForbiddenError(f"--by zone has to list nodes and EndpointSlices: {error}") from error
    return KnownZones(nodes, backends)


def _objects(
    access: Access, path: str, kind: Kind, accept: str = JSON
) -> Iterator[ApiObject | None]:
    """Those that can be read."""
    for each in access.items(path, accept=accept):
        with suppress(SourceError):
            yield decode(dict(each), kind=kind)
