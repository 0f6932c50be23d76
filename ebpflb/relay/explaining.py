# SPDX-License-Identifier: Apache-2.0
"""What may be explained to a viewer of one namespace: its Services, to clients that it may see."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from ebpflb.cli.explain_words import AddressOrName, parse_source, parse_target
from ebpflb.from_json import from_json
from ebpflb.model.address import format_address
from ebpflb.relay.access import ObservedCluster
from ebpflb.relay.redaction import NamespaceSight
from ebpflb.relay.requests import ApiError


def check_explanation(
    cluster: ObservedCluster, given: Mapping[str, str], sight: NamespaceSight
) -> None:
    """ApiError if SRC or DST is another's. ConfigError, ClusterError."""
    end = parse_target(given.get("to", ""), sight.namespace).end
    if end.name and end.name.namespace != sight.namespace:
        raise _forbidden(f"{end.name} is in another namespace than {sight.namespace}: ask there")
    client = parse_source(given.get("from", ""), sight.namespace)
    if not _may_be(cluster, client, sight):
        raise _forbidden(
            f"{given['from']} is a node, or a pod of a namespace whose pods you may not list"
        )


def _may_be(cluster: ObservedCluster, client: AddressOrName, sight: NamespaceSight) -> bool:
    if client.name:
        return _sees(sight, client.name.namespace)
    if not client.address:
        return sight.sees_nodes
    address = format_address(client.address)
    if address in sight.addresses.nodes:
        return sight.sees_nodes
    pod = cluster.pod_with(address)
    return pod is None or _sees(sight, str(pod["metadata"]["namespace"]))


def _sees(sight: NamespaceSight, namespace: str) -> bool:
    return namespace == sight.namespace or sight.sees_pods(namespace)


def own_explanations(
    items: list[dict[str, Any]], sight: NamespaceSight, *, by_name: bool
) -> list[Any]:
    """Those of Services of the namespace, without addresses of nodes. ApiError if there is none.

    `by_name`: DST is a name, of the namespace.
    Nor does it tell an address of another namespace's Service from one of none.
    """
    # A Service that was named may have no frontend yet.
    theirs = (sight.namespace, "") if by_name else (sight.namespace,)
    own = [each for each in items if _namespace(each) in theirs]
    if items and not own:
        raise _forbidden(f"no Service of namespace {sight.namespace} has this address and port")
    return [from_json(sight.text(json.dumps(each))) for each in own]


def _namespace(item: Mapping[str, Any]) -> str:
    return str(item["answer"]["target"]["service"]).partition("/")[0]


def _forbidden(text: str) -> ApiError:
    return ApiError(HTTPStatus.FORBIDDEN, text)
