# SPDX-License-Identifier: Apache-2.0
"""An error in a field that does not matter, given the other fields, does not invalidate an
object.
"""

import json
from typing import Any

import pytest

from ebpflb.errors import SourceError
from ebpflb.model.objects.kinds import Kind
from ebpflb.model.selection import PROXY_LABEL
from ebpflb.source.decode import decode
from tests.builders import Manifest, node_manifest, service_manifest, slice_manifest

# Of a later version of the API, perhaps.
NEW_PORTS = [{"port": 443, "protocol": "QUIC"}]
NO_ADDRESSES = {"podIPs": [{"ip": 3}]}
POD: Manifest = {"kind": "Pod", "metadata": {"name": "web-1"}}


def spec(**fields: Any) -> Manifest:
    return service_manifest(ports=NEW_PORTS, **fields)


def labelled(manifest: Manifest, **labels: str) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}


def addresses(*entries: Any) -> Manifest:
    return {**node_manifest(), "status": {"addresses": list(entries)}}


IRRELEVANT = {
    "Service for another proxy": labelled(spec(), **{PROXY_LABEL: "other"}),
    "Service without a ClusterIP": spec(clusterIP=None),
    "headless Service": spec(clusterIP="None"),
    "ExternalName": spec(type="ExternalName"),
    "affinity that is off": service_manifest(sessionAffinityConfig={"clientIP": 3}),
    "slice without a Service": labelled(slice_manifest(ports=NEW_PORTS)),
    "headless slice": labelled(
        slice_manifest(ports=NEW_PORTS),
        **{"kubernetes.io/service-name": "web", "service.kubernetes.io/headless": ""},
    ),
    "slice of host names": slice_manifest(addressType="FQDN", ports=NEW_PORTS),
    "host name of a Node": addresses({"type": "Hostname", "address": 3}),
    "pod on the host's network": {**POD, "spec": {"hostNetwork": True}, "status": NO_ADDRESSES},
    "pod that has finished": {**POD, "status": {"phase": "Failed", **NO_ADDRESSES}},
}
RELEVANT = {
    "Service": spec(),
    "Service with a spec that is none": {**service_manifest(), "spec": 3},
    "affinity": service_manifest(sessionAffinity="ClientIP", sessionAffinityConfig={"clientIP": 3}),
    "slice": slice_manifest(ports=NEW_PORTS),
    "address of a Node": addresses({"type": "InternalIP", "address": 3}),
    "address that is none": addresses(3),
    "status that is none": {**node_manifest(), "status": 3},
    "pod": {**POD, "status": NO_ADDRESSES},
    "status of a pod that is none": {**POD, "status": 3},
}


def ways(manifest: Manifest) -> list[Any]:
    return [manifest, json.dumps(manifest).encode()]


@pytest.mark.parametrize("manifest", IRRELEVANT.values(), ids=IRRELEVANT)
def test_what_does_not_count_may_hold_anything(manifest: Manifest):
    fields, raw = map(decode, ways(manifest))
    assert fields == raw


@pytest.mark.parametrize("manifest", RELEVANT.values(), ids=RELEVANT)
def test_what_counts_may_not(manifest: Manifest):
    lines = []
    for way in ways(manifest):
        with pytest.raises(SourceError) as caught:
            decode(way)
        lines.append(str(caught.value))
    assert lines[0] == lines[1]
    assert lines[0].startswith(f"{manifest['kind']} ")


def test_where_the_name_of_the_proxy_decides_a_service_counts():
    manifest = labelled(spec(), **{PROXY_LABEL: "ours"})
    with pytest.raises(SourceError, match="protocol"):
        decode(manifest, [PROXY_LABEL])


def test_the_kind_may_be_known_from_elsewhere():
    manifest = service_manifest()
    bare = {key: value for key, value in manifest.items() if key not in ("kind", "apiVersion")}
    for way in ways(bare):
        assert decode(way, kind=Kind.SERVICE) == decode(manifest)
        with pytest.raises(SourceError, match=r"^kind: is missing"):
            decode(way)
