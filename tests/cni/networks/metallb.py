# SPDX-License-Identifier: Apache-2.0
"""MetalLB on top of bridge, layer 2 and BGP: its own manifest, images of the programs it names.

BGP is spoken by its own speaker, IPv4 only; the external router is FRR. The webhook is left out: it
checks MetalLB's own objects, and the API server of this cluster, which is on no node, could not
reach its Service.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tests.cluster.harness import workloads
from tests.cluster.harness.binaries import Recipe, module_folder
from tests.cluster.harness.cluster import Cluster
from tests.cluster.harness.images import Image
from tests.cluster.harness.pod_network import BRIDGE, PodNetwork
from tests.cni import router
from tests.cni.networks.debian import NO_POLICY
from tests.cni.row import Cni

VERSION = "0.16.1"

_MODULE = f"go.universe.tf/metallb@v{VERSION}"
_MANIFEST = Path("config/manifests/metallb-native.yaml")
_NAMESPACE = "metallb-system"
# In no subnet: only BGP can have announced the route to it.
_ROUTED = "198.51.100.0/24"


def _image(program: str) -> Image:
    package = _MODULE.replace("@", f"/{program}@")
    recipe = Recipe(package, flags=("-ldflags", "-s -w"))
    return Image(f"quay.io/metallb/{program}:v{VERSION}", program, recipe=recipe)


_IMAGES = (_image("controller"), _image("speaker"))


def _build() -> None:
    for image in _IMAGES:
        image.build()


def _build_with_router() -> None:
    _build()
    router.folder()


def _add_layer2(cluster: Cluster) -> None:
    _install(cluster)
    workloads.apply(
        cluster, _NAMESPACE, [_pool(_unused(cluster)), _object("v1beta1", "L2Advertisement")]
    )


def _add_bgp(cluster: Cluster) -> None:
    address = router.start(cluster)
    _install(cluster)
    peer = {"myASN": router.NODES_AS, "peerASN": router.ROUTER_AS, "peerAddress": address}
    objects = [
        _pool([_ROUTED]),
        _object("v1beta1", "BGPAdvertisement"),
        _object("v1beta2", "BGPPeer", **peer),
    ]
    workloads.apply(cluster, _NAMESPACE, objects)


def _install(cluster: Cluster) -> None:
    folder = cluster.control_plane.layout.folder / "images"
    for image in _IMAGES:
        cluster.load_image(image.write(folder))
    cluster.kubectl("apply", "-f", "-", input=yaml.safe_dump_all(_objects()))
    for target in ("deployment/controller", "daemonset/speaker"):
        cluster.control_plane.wait("-n", _NAMESPACE, "rollout", "status", target)


def _objects() -> Iterator[dict[str, Any]]:
    text = (module_folder("", _MODULE) / _MANIFEST).read_text()
    for item in yaml.safe_load_all(text):
        if item["kind"] == "Deployment":
            (container,) = item["spec"]["template"]["spec"]["containers"]
            container["args"].append("--webhook-mode=disabled")
        if item["kind"] != "ValidatingWebhookConfiguration":
            yield item


def _unused(cluster: Cluster) -> list[str]:
    """Ranges of the underlay that no member uses."""
    layout = cluster.control_plane.layout
    return [
        f"{prefix}{first}-{prefix}{last}"
        for address, first, last in (
            (layout.address("client"), "230", "239"),
            (layout.address6("client"), "e0", "ef"),
        )
        for prefix in [address.removesuffix("200").removesuffix("c8")]
    ]


def _pool(ranges: list[str]) -> dict[str, Any]:
    return _object("v1beta1", "IPAddressPool", addresses=ranges)


def _object(version: str, kind: str, **spec: Any) -> dict[str, Any]:
    metadata = {"name": "paths"}
    return {"apiVersion": f"metallb.io/{version}", "kind": kind, "metadata": metadata, "spec": spec}


def _row(
    name: str,
    title: str,
    version: str,
    build: Callable[[], None],
    add: Callable[[Cluster], None],
    **others: Any,
) -> Cni:
    return Cni(
        PodNetwork(f"metallb-{name}", BRIDGE.conflist, build=build, routed=True),
        f"bridge, with MetalLB in {title}",
        f"MetalLB {VERSION} (Go module), {version}containernetworking-plugins 1.1.1 (Debian 12)",
        pods=("veth*",),
        lacks=NO_POLICY,
        add=add,
        **others,
    )


ROWS = (
    _row("l2", "layer 2 mode", "", _build, _add_layer2),
    _row(
        "bgp",
        "BGP mode; the router outside is FRR",
        f"FRR {router.VERSION} (Debian 12), ",
        _build_with_router,
        _add_bgp,
        ipv6=False,
    ),
)
