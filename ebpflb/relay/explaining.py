# SPDX-License-Identifier: Apache-2.0
"""What may be explained to a viewer of one namespace: its Services, to clients that it may see."""

import json
from collections.abc import Iterator, Mapping
from http import HTTPStatus
from typing import Any

from ebpflb.cli.explain_words import AddressOrName, parse_source, parse_target
from ebpflb.from_json import from_json
from ebpflb.model.address import (
    WILDCARD,
    Address,
    format_address,
    is_link_local,
    is_loopback,
)
from ebpflb.relay.access import ObservedCluster
from ebpflb.relay.redaction import A_NODE, NamespaceSight
from ebpflb.relay.requests import ApiError

# Of backends: addresses of nodes, of which Node objects need not have all.
_OF_NODES = ("masquerade", "tunnel")


def check_explanation(
    cluster: ObservedCluster, given: Mapping[str, str], sight: NamespaceSight
) -> None:
    """ApiError if SRC or DST is another's. ConfigError, ClusterError."""
    end = parse_target(given["to"], sight.namespace).end
    if end.name and end.name.namespace != sight.namespace:
        raise _forbidden(f"{end.name} is in another namespace than {sight.namespace}: ask there")
    client = parse_source(given["from"], sight.namespace)
    if not _may_be(cluster, client, sight):
        raise _forbidden(
            f"{given['from']} is or may be a node, or a pod of a namespace whose pods you may not "
            "list: give the name of a pod, or an address outside the cluster"
        )


def _may_be(cluster: ObservedCluster, client: AddressOrName, sight: NamespaceSight) -> bool:
    """Of an address of no known pod it must not tell whether there is such a pod elsewhere."""
    if client.name:
        return sight.sees(client.name.namespace)
    if not client.address or _is_of_node(client.address, sight):
        return sight.sees_nodes
    address = format_address(client.address)
    pods = cluster.pods_with(address)
    if any(each.is_on_host for each in pods):
        return sight.sees_nodes
    if pods:
        return all(sight.sees(each.namespace) for each in pods)
    return not sight.may_be_a_pods(address) or sight.sees_pods("")


def _is_of_node(address: Address, sight: NamespaceSight) -> bool:
    if is_loopback(address) or is_link_local(address) or address in WILDCARD.values():
        return True
    return format_address(address) in sight.addresses.nodes


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
    return [from_json(sight.text(json.dumps(_shown(each, sight)))) for each in own]


_NOTHING: Mapping[str, Any] = {
    "frontend": None,
    "endpoints": [],
    **dict.fromkeys(("left_out", "backup", "annotations"), ""),
}


def _shown(item: dict[str, Any], sight: NamespaceSight) -> dict[str, Any]:
    """Without a model that wants another's Service there, and without what only nodes have."""
    answer = dict(item["answer"])
    kernel, model = answer["kernel"], answer["model"]
    if any(theirs != sight.namespace for theirs in _owners(kernel, model)):
        answer["model"] = {**model, **_NOTHING}
        answer |= {"agree": None, "differences": []}
    if not sight.sees_nodes:
        backends = [
            {**each, **{key: A_NODE for key in _OF_NODES if each.get(key)}}
            for each in kernel["backends"]
        ]
        answer["kernel"] = {**kernel, "backends": backends}
    return {**item, "answer": answer}


def _owners(*told: Mapping[str, Any]) -> Iterator[str]:
    """Of the frontends that kernel and model have."""
    for each in told:
        if each["frontend"] and (service := each["frontend"].get("service")):
            yield str(service).partition("/")[0]


def _namespace(item: Mapping[str, Any]) -> str:
    return str(item["answer"]["target"]["service"]).partition("/")[0]


def _forbidden(text: str) -> ApiError:
    return ApiError(HTTPStatus.FORBIDDEN, text)
