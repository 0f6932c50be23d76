# SPDX-License-Identifier: Apache-2.0
"""The metadata of what is made of an object: it belongs to that, and goes with it."""

from collections.abc import Mapping
from typing import Any

from ebpflb.gateway.policy.found import Key
from ebpflb.gateway.policy.objects import ApiItem
from ebpflb.words.gateway import OURS, SLICE_MANAGED_BY

SERVICE_LABEL = "kubernetes.io/service-name"
_LONGEST_LABEL = 63

Fields = Mapping[str, Any]


def owned_metadata(kind: tuple[str, str], owner: ApiItem, key: Key) -> Fields:
    """`kind`: apiVersion and kind of the owner. `key`: of what is made."""
    reference = {
        "apiVersion": kind[0],
        "kind": kind[1],
        "name": owner.metadata.name,
        "uid": owner.metadata.uid,
        "controller": True,
    }
    return {"namespace": key[0], "name": key[1], "ownerReferences": [reference]}


def slice_of(
    kind: tuple[str, str], owner: ApiItem, key: Key, service: str, fields: Fields
) -> Fields:
    """An EndpointSlice of a Service. `fields`: the others, and annotations."""
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            **owned_metadata(kind, owner, key),
            "labels": {SERVICE_LABEL: service, SLICE_MANAGED_BY: OURS},
            "annotations": fields["annotations"],
        },
        **{name: value for name, value in fields.items() if name != "annotations"},
    }


def label_value(name: str) -> str:
    """A name as the value of a label, for which it may be too long."""
    return name[:_LONGEST_LABEL].rstrip("-.")
