# SPDX-License-Identifier: Apache-2.0
"""All objects that count, as they are at one moment."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ebpflb.gateway.policy.objects import (
    ApiItem,
    Gateway,
    GatewayClass,
    GatewayRoute,
    GivenNode,
    GivenService,
    GivenSlice,
    LabelledNamespace,
    ReferenceGrant,
    ServiceImport,
)
from ebpflb.words.gateway import CONTROLLER, MANAGED_BY, OURS

Key = tuple[str, str]
"""Namespace and name."""


@dataclass(frozen=True)
class FoundObjects:
    """By namespace and name. routes: by kind. slices: those of each Service, by its name.

    imported: those of each ServiceImport, from all clusters, by its name.
    refusals: why the API server did not take our Services of these names.
    """

    classes: Mapping[Key, GatewayClass] = field(default_factory=dict)
    gateways: Mapping[Key, Gateway] = field(default_factory=dict)
    routes: Mapping[str, Mapping[Key, GatewayRoute]] = field(default_factory=dict)
    grants: Mapping[Key, ReferenceGrant] = field(default_factory=dict)
    namespaces: Mapping[Key, LabelledNamespace] = field(default_factory=dict)
    services: Mapping[Key, GivenService] = field(default_factory=dict)
    slices: Mapping[Key, Sequence[GivenSlice]] = field(default_factory=dict)
    nodes: Mapping[Key, GivenNode] = field(default_factory=dict)
    imports: Mapping[Key, ServiceImport] = field(default_factory=dict)
    imported: Mapping[Key, Sequence[GivenSlice]] = field(default_factory=dict)
    refusals: Mapping[Key, str] = field(default_factory=dict)

    @cached_property
    def own_classes(self) -> Sequence[GatewayClass]:
        """Of this controller, whether or not they are accepted."""
        return [each for each in self.classes.values() if each.spec.controller_name == CONTROLLER]

    @cached_property
    def own_gateways(self) -> Mapping[Key, Gateway]:
        """Of its accepted classes, the oldest first."""
        names = {each.metadata.name for each in self.own_classes if not each.spec.parameters_ref}
        found = (each for each in self.gateways.values() if each.spec.gateway_class_name in names)
        return {each.key: each for each in sorted(found, key=lambda each: each.age)}

    @cached_property
    def node_addresses(self) -> frozenset[str]:
        return frozenset(
            entry.address
            for node in self.nodes.values()
            for entry in ((node.status.addresses if node.status else None) or ())
        )

    def labels_of(self, namespace: str) -> Mapping[str, str]:
        """Of a namespace; none if it is not known."""
        found = self.namespaces.get(("", namespace))
        return (found.metadata.labels if found else None) or {}


def is_ours(item: GivenService | GivenSlice, label: str = MANAGED_BY) -> bool:
    """Whether it says that it was made by this controller."""
    return (item.metadata.labels or {}).get(label) == OURS


def is_made_of(item: GivenService | GivenSlice, owner: ApiItem, label: str = MANAGED_BY) -> bool:
    """Whether this Gateway or ServiceImport is its owner."""
    owners = item.metadata.owner_references or ()
    return is_ours(item, label) and any(each.uid == owner.metadata.uid for each in owners)
