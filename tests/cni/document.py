# SPDX-License-Identifier: Apache-2.0
"""docs/compatibility.md, written from the rows and the results of their last runs."""

import inspect
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cni import test_paths
from tests.cni.row import Cni, rows

RECORDS = Path(__file__).parent / "results"

PASSED, FAILED, LACKING = "yes", "**no**", "n/a"

_HEAD = """\
# Compatibility with CNIs

Each CNI below ran in a real Kubernetes of two nodes, in network namespaces of one machine
([cluster.md](cluster.md)), with ebpflb installed by its Helm chart and without kube-proxy. The
tests are the same for all (`tests/cni/test_paths.py`). A CNI that is not in the first table was not
run; for some, [their layout](#laid-out-after-documentation) was tested. For others nothing is
claimed.

Repeat one row, as root; this also writes this page:

    make test-cni CNI=flannel-vxlan

## What was run
"""
_PATHS = """\
## Paths

`yes`: every case passed: TCP and UDP where both apply, the IP families of the row, and the pod on
the node that was asked and on the other one. `n/a`: the CNI does not have it, whoever serves
Services. `**no**`: see the remarks.
"""
_LAID_OUT = """\
## Laid out after documentation

The programs of these CNIs were not run. Nodes of the lab have the devices, addresses, routes, rules
and marks that their sources and documentation describe, and packets take every way there, with TCP
and UDP over IPv4 and IPv6 (`tests/e2e/networks/test_layouts.py`, part of `make test`): from outside
to NodePorts with policy Cluster and Local, whose pod is on the node that was asked or on another
one, and from pods and from the node to ClusterIPs. `doctor` finds nothing.

- **AWS VPC CNI**, after aws/amazon-vpc-cni-k8s of August 2026: `eni*` veths, pods of a second ENI
  with a route table of its own, security groups for pods in strict mode (`vlan*` veths), connection
  marks, NodePorts at the address of either ENI. The VPC between the nodes drops what leaves by an
  ENI that does not have its source.
- **Azure**, after Azure/azure-container-networking of August 2026: `azv*` veths of the transparent
  mode.
- **GKE** without Dataplane V2: `gke*` veths, each with the gateway's address.
- **Antrea**, much as **OVN-Kubernetes** and **Kube-OVN**: pods' veths as ports of a switch, a
  gateway port by which the node reaches them, and an uplink bridge with the card as a port.

The kernel of the machine has neither Open vSwitch nor VLANs: Linux bridges and veths stand for
them. With AWS's security groups for pods in strict mode, policy Local was not tested, because AWS
does not support it; nor were NodePorts at the address of a second ENI, where kube-proxy's rules do
not work either.
"""
_CLUSTERS = """\
## Kinds of clusters

- **Kubernetes, dual-stack** (IPv4 first), built from its Go modules: run, in every row above and in
  `tests/cluster`, with several API servers, while it moves from kube-proxy, and in upgrades.
- **Kubernetes for IPv4 alone or IPv6 alone**: not run. The lab has both: nodes, pods and agents
  without any address of the other family carry the same traffic as with two
  (`tests/e2e/traffic/test_packets.py`), with manifests in place of an API server.
- **kind**: not run. kind 0.33.0 builds as a Go module, but its nodes are containers of an image
  from Docker Hub, as is the base to build one from. The machine reaches no registry of images.
- **k3s**, **k0s**: not run. The proxy of Go modules serves neither `github.com/k3s-io/k3s` nor
  `github.com/k0sproject/k0s`, and Debian has no package of them.
- **kubeadm**, **OpenShift** and those of AWS, Google and Azure: not available;
  [install.md](install.md) says what is known.
"""
_TAIL = """\
## What was not run

- **macvlan** and **ipvlan** as the network of a cluster: a host cannot reach such pods of its own
  node, whoever serves Services, so kubelet cannot probe them. In the lab, such pods use Services by
  the socket hooks, with TCP and UDP, and pods, processes and NodePorts of other nodes lead to them
  (`tests/e2e/networks/test_pod_networks.py`).
- **netkit** devices and **VRFs**: the kernel of the machine is built without them.
- **WireGuard** and **IPIP** of any CNI: the kernel of the machine is built without them.
- **Calico with BGP**: its BIRD is a fork in C that is no package; Felix lays the routes here. Its
  eBPF dataplane serves Services itself.
- **Cilium** with its kube-proxy replacement, which serves Services itself, and with Geneve, which
  the kernel is built without.
- **MetalLB with FRR in its speakers**, which announces IPv6 as well; its own BGP, which was run,
  announces IPv4 alone.
- **kube-router, kindnet, Antrea, OVN-Kubernetes, Kube-OVN, Weave Net** and the CNIs of the cloud
  providers AWS, Azure and Google: their programs were not available. Some are laid out above.
"""


@dataclass(frozen=True, slots=True)
class Record:
    """A run of all tests of a row. run: the day. results: PASSED, FAILED or LACKING by test."""

    run: str
    kernel: str
    kubernetes: str
    version: str
    results: dict[str, str]

    def write(self, name: str) -> None:
        """Store it as the last run of a row."""
        _path(name).write_text(json.dumps(asdict(self), indent=1) + "\n")


def read_record(name: str) -> Record | None:
    """The last run of a row; None if there was none."""
    path = _path(name)
    return Record(**json.loads(path.read_text())) if path.exists() else None


def columns() -> dict[str, str]:
    """The title of each test: the first line of its docstring."""
    return {
        name: (inspect.getdoc(function) or "").splitlines()[0].rstrip(".")
        for name, function in vars(test_paths).items()
        if name.startswith("test_")
    }


def render() -> str:
    """The whole document."""
    run = [(row, record) for row in rows().values() if (record := read_record(row.name))]
    parts = [
        _HEAD,
        _table(_versions(run)),
        _PATHS,
        _table(_paths(run)),
        *_remarks(run),
        _LAID_OUT,
        _CLUSTERS,
        _TAIL,
    ]
    return "\n".join(parts) + _never_run()


def _versions(run: Iterable[tuple[Cni, Record]]) -> Iterator[list[str]]:
    yield ["CNI", "`CNI=`", "version", "IP", "Kubernetes", "Linux", "run on"]
    for row, record in run:
        families = "4 and 6" if row.ipv6 else "4"
        made = [record.version, families, record.kubernetes, record.kernel, record.run]
        yield [row.title, f"`{row.name}`", *made]


def _paths(run: Iterable[tuple[Cni, Record]]) -> Iterator[list[str]]:
    run = list(run)
    yield ["", *(f"`{row.name}`" for row, _ in run)]
    for test, title in columns().items():
        yield [title, *(record.results.get(test, "") for _, record in run)]


def _remarks(run: Iterable[tuple[Cni, Record]]) -> Iterator[str]:
    found = defaultdict(list)
    for row, _ in run:
        for test, reason in (row.lacks | row.fails).items():
            found[columns()[test], reason].append(f"`{row.name}`")
    lines = [f"- {path}, {', '.join(who)}: {why}." for (path, why), who in found.items()]
    if lines:
        yield "".join(f"{line}\n" for line in ["### Remarks", "", *lines])


def _never_run() -> str:
    return "".join(
        f"- **{row.title}** (`{row.name}`): no run of it has been recorded.\n"
        for row in rows().values()
        if not read_record(row.name)
    )


def _table(lines: Iterable[list[str]]) -> str:
    head, *others = lines
    return "".join(f"| {' | '.join(line)} |\n" for line in [head, ["---"] * len(head), *others])


def _path(name: str) -> Path:
    return RECORDS / f"{name}.json"
