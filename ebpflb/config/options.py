# SPDX-License-Identifier: Apache-2.0
"""Every setting of an agent in one table: its names, its default, its check, what it is for."""

import os
from collections.abc import Mapping
from pathlib import Path

from ebpflb.config import values
from ebpflb.config.option import Given, Option
from ebpflb.errors import ConfigError, ProbeError

BPFFS_ROOT = "/sys/fs/bpf/ebpflb"
METRICS_PORT = 10249
HEALTHZ_PORT = 10256
# Not Geneve's 6081, which OVN, Antrea and Cilium use.
DSR_PORT = 6089
SCHEDULERS = ("random", "round-robin", "least-connections", "source-hash", "maglev")
METRICS_BIND_ADDRESS = f"127.0.0.1:{METRICS_PORT}"
HEALTHZ_BIND_ADDRESS = f"0.0.0.0:{HEALTHZ_PORT}"
QUERY_SOCKET = "/run/ebpflb/agent.sock"
OOM_SCORE_ADJ = -999
# kube-proxy's own bound of nf_conntrack_max.
_MOST_FLOWS = 1048576
_MOST = 999_999_999

_MOUNTS = Path("/proc/mounts")


def by_option(given: Mapping[str, Given]) -> dict[str, Given]:
    """Values by the option's own name. Raises ConfigError if an option is given by two names."""
    found: dict[str, Given] = {}
    names = {name: option.name for option in OPTIONS for name in option.names}
    for name, one in given.items():
        option = names[name]
        if option in found:
            raise ConfigError(f"{one.where}: the same setting as {found[option].where}: give one")
        found[option] = one
    return found


def cgroup_root(mounts: Path = _MOUNTS) -> str:
    """The first cgroup v2 mount point. Raises ProbeError if there is none."""
    for line in mounts.read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return where.encode().decode("unicode_escape")
    raise ProbeError(
        "cgroup v2 is not mounted: run `mount -t cgroup2 none DIR`, or name it with --cgroup-root"
    )


OPTIONS: tuple[Option, ...] = (
    # Where objects come from, and this node.
    Option(
        "manifests",
        values.path,
        None,
        "PATH",
        "watched file or directory with Service, EndpointSlice, Node and ServiceCIDR objects "
        "(YAML, JSON), used instead of the Kubernetes API",
    ),
    Option(
        "kubeconfig",
        values.optional_path,
        "",
        "FILE",
        "how to reach the Kubernetes API  [the pod's ServiceAccount]",
    ),
    Option(
        "master", values.url, "", "URL", "address of the API server; overrides the kubeconfig's"
    ),
    Option(
        "api-servers",
        values.urls,
        "",
        "URL,...",
        "further addresses of the API server, tried when one fails; so are those that it lists "
        "as endpoints of the Service default/kubernetes",
    ),
    Option(
        "service-selector",
        values.label_selector,
        "",
        "SELECTOR",
        "serve only Services whose labels match, beside a kube-proxy that serves the others, as in "
        "canary=yes or tier in (web,api),!legacy  [all]",
    ),
    Option(
        "namespace-selector",
        values.label_selector,
        "",
        "SELECTOR",
        "serve only Services of Namespaces whose labels match; with --service-selector, both must "
        "match  [all]",
    ),
    Option(
        "node-name",
        values.node_name,
        lambda: os.uname().nodename.lower(),
        "NAME",
        "name of this node's Node object; decides which endpoints are local  [host name]",
        ("hostname-override",),
    ),
    Option(
        "cgroup-root",
        values.path,
        cgroup_root,
        "DIR",
        "cgroup v2 directory whose processes the socket LB serves  [cgroup v2 mount]",
    ),
    Option(
        "bpffs-root",
        values.path,
        BPFFS_ROOT,
        "DIR",
        f"directory of the pinned maps, programs and links  [{BPFFS_ROOT}]",
    ),
    Option(
        "host-devices",
        values.words,
        "",
        "PATTERN,...",
        "names of uplinks and tunnels of the node; +PATTERN adds to what is found  [found by what "
        "a device is]",
    ),
    Option(
        "workload-devices",
        values.words,
        "",
        "PATTERN,...",
        "names of the host side of the pods' devices, matched before --host-devices; +PATTERN adds "
        "to what is found  [found by what a device is]",
    ),
    Option(
        "socket-lb",
        values.choice("all", "host"),
        "all",
        "all|host",
        "which processes the socket LB serves: all, or (host) all except pods that tc "
        "serves  [all]",
    ),
    Option(
        "forwarding",
        values.choice("auto", "redirect", "stack"),
        "auto",
        "auto|redirect|stack",
        "who routes masqueraded packets: the programs (redirect), past netfilter's FORWARD and "
        "the CNI's policies there, or the kernel  [auto: stack where a device or a rule shows "
        "who enforces policies]",
    ),
    Option(
        "attach",
        values.choice("auto", "tcx", "clsact"),
        "auto",
        "auto|tcx|clsact",
        "how to attach programs to devices  [auto: tcx where the kernel has it]",
    ),
    Option(
        "xdp",
        values.choice("off", "auto", "native", "generic"),
        "off",
        "off|auto|native|generic",
        "send on at XDP, before the network stack, what leaves the node again: in the driver where "
        "that gains (auto) or wherever it can (native), or without it (generic, for tests)  [off]",
    ),
    Option(
        "xdp-devices",
        values.words,
        "",
        "PATTERN,...",
        "names of the uplinks that --xdp is for  [all]",
    ),
    # Servers, logs and the process.
    Option(
        "metrics-bind-address",
        values.bind_address(METRICS_PORT),
        METRICS_BIND_ADDRESS,
        "IP:PORT",
        f"/metrics, /proxyMode, /status; empty = off  [{METRICS_BIND_ADDRESS}]",
    ),
    Option(
        "metrics-services",
        values.boolean,
        "true",
        "BOOL",
        "export metrics of each Service that this node has traffic for  [true]",
    ),
    Option(
        "metrics-backends",
        values.boolean,
        "false",
        "BOOL",
        "also export metrics of each backend, four series each  [false]",
    ),
    Option(
        "metrics-clients",
        values.number(0, 100000),
        "0",
        "NUMBER",
        "export flow records by client's workload and Service, for so many pairs; 0 = none  [0]",
    ),
    Option(
        "healthz-bind-address",
        values.bind_address(HEALTHZ_PORT),
        HEALTHZ_BIND_ADDRESS,
        "IP:PORT",
        f"/healthz, /livez; empty = off  [{HEALTHZ_BIND_ADDRESS}]",
    ),
    Option(
        "bind-address-hard-fail",
        values.boolean,
        "false",
        "BOOL",
        "exit when a server cannot listen  [false]",
    ),
    Option(
        "log-format",
        values.choice("text", "json"),
        "text",
        "text|json",
        "key=value lines or JSON objects on stderr  [text]",
        ("logging-format",),
    ),
    Option("verbosity", values.verbosity, "0", "N", "1 logs every sync  [0]", ("v",)),
    Option(
        "oom-score-adj",
        values.number(-1000, 1000),
        str(OOM_SCORE_ADJ),
        "N",
        f"how readily the kernel kills the agent when memory runs out  [{OOM_SCORE_ADJ}]",
    ),
    # Traffic.
    Option(
        "bind-address",
        values.ip_or_nothing,
        "",
        "IP",
        "the node's primary address; nothing binds to it  [address of the default route]",
    ),
    Option(
        "nodeport-addresses",
        values.nodeport_addresses,
        "",
        "CIDR,...",
        "node addresses that accept NodePorts, or the word primary  [all]",
    ),
    Option(
        "localhost-nodeports",
        values.boolean,
        "true",
        "BOOL",
        "serve NodePorts on 127.0.0.1 for processes of the node, if --nodeport-addresses "
        "admits that address  [true]",
        ("iptables-localhost-nodeports",),
    ),
    Option(
        "masquerade-all",
        values.boolean,
        "false",
        "BOOL",
        "backends see a node's address as the source, except under externalTrafficPolicy "
        "Local  [false]",
    ),
    Option(
        "scheduler",
        values.choice(*SCHEDULERS),
        "random",
        "|".join(SCHEDULERS),
        "how a backend is chosen where a Service has no annotation ebpflb.io/scheduler  [random]",
    ),
    Option(
        "maglev-table-size",
        values.prime(2, 65521),
        "10007",
        "PRIME",
        "slots of a lookup table of the schedulers maglev and source-hash  [10007]",
    ),
    Option(
        "dsr",
        values.choice("off", "annotated", "all"),
        "off",
        "off|annotated|all",
        "direct server return: a pod on another node sees the client, which gets its answers from "
        'that node; for Services with the annotation ebpflb.io/dsr: "true" (annotated), or for all '
        'but those with "false" (all); the same on all nodes  [off]',
    ),
    Option(
        "dsr-port",
        values.number(1, 65535),
        str(DSR_PORT),
        "PORT",
        "UDP port at which nodes take packets with direct server return from each other, in "
        f"Geneve; the same on all nodes  [{DSR_PORT}]",
    ),
    Option(
        "detect-local-mode",
        values.choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
        "ClusterCIDR",
        "MODE",
        "how kube-proxy recognises traffic of this node's pods: ClusterCIDR, NodeCIDR, "
        "BridgeInterface or InterfaceNamePrefix  [ClusterCIDR]",
    ),
    Option(
        "cluster-cidr",
        values.cidrs,
        "",
        "CIDR,...",
        "addresses of the cluster's pods  [none]",
    ),
    Option(
        "pod-bridge-interface",
        values.text,
        "",
        "NAME",
        "name of the bridge in mode BridgeInterface",
    ),
    Option(
        "pod-interface-name-prefix",
        values.text,
        "",
        "TEXT",
        "prefix of device names in mode InterfaceNamePrefix",
    ),
    Option(
        "ejection",
        values.ejection,
        "off",
        "off|on|N",
        "after N failed TCP or SCTP connections in a row (on: 5) this node leaves an endpoint out "
        "for a time, but never more than half of them; Services may differ by the annotation "
        "ebpflb.io/ejection  [off]",
    ),
    Option(
        "ejection-time",
        values.positive_duration,
        "10s",
        "TIME",
        "for how long an endpoint is left out the first time; it doubles with each ejection in a "
        "row, up to 5m  [10s]",
    ),
    # Periods and timeouts.
    Option(
        "sync-period",
        values.positive_duration,
        "30s",
        "TIME",
        "how soon a failed sync or lost state is repaired; the agent is unhealthy after twice "
        "this time  [30s]",
        ("iptables-sync-period", "ipvs-sync-period"),
    ),
    Option(
        "min-sync-period",
        values.duration,
        "0s",
        "TIME",
        "shortest time between two syncs  [0s: at once]",
        ("iptables-min-sync-period", "ipvs-min-sync-period"),
    ),
    Option(
        "conntrack-tcp-timeout-established",
        values.duration,
        "24h",
        "TIME",
        "timeout of idle established TCP flows; 0 = the built-in 24h  [24h]",
    ),
    Option(
        "conntrack-tcp-timeout-close-wait",
        values.duration,
        "1h",
        "TIME",
        "timeout of idle TCP flows that one side has closed; 0 = as for established flows  [1h]",
    ),
    Option(
        "conntrack-udp-timeout",
        values.duration,
        "0s",
        "TIME",
        "timeout of idle UDP flows that are no streams; 0 = the built-in 30s  [0s]",
    ),
    Option(
        "conntrack-udp-timeout-stream",
        values.duration,
        "0s",
        "TIME",
        "timeout of idle UDP streams; 0 = the built-in 2m  [0s]",
    ),
    # Sizes.
    Option(
        "conntrack-max-per-core",
        values.number(0, _MOST_FLOWS),
        "32768",
        "N",
        "room for this many established flows per CPU, as far as memory allows  [32768]",
    ),
    Option(
        "conntrack-min",
        values.number(0, _MOST_FLOWS),
        "131072",
        "N",
        "room for this many established flows, whatever the number of CPUs  [131072]",
    ),
    # Flow records: which are made, and where they go.
    Option(
        "flow-events",
        values.flow_events,
        "end,refused,dropped",
        "EVENT,...",
        "events that create a flow record: start, end, refused, dropped, or the word "
        "none  [end,refused,dropped]",
    ),
    Option(
        "flow-sample",
        values.number(0, _MOST),
        "1",
        "N",
        "one flow in N gets records of its start and end; 0 = none  [1: each]",
    ),
    Option(
        "flow-rate",
        values.number(0, _MOST),
        "1000",
        "N",
        "flow records per second and CPU; 0 = no limit  [1000]",
    ),
    Option(
        "flow-history",
        values.number(1, 1048576),
        "4096",
        "N",
        "number of recent flow records that the agent keeps for queries  [4096]",
    ),
    Option(
        "flow-export",
        values.text,
        "",
        "FILE",
        "append each flow record to this file as a line of JSON; - = standard output  [no export]",
    ),
    Option(
        "flow-export-max-bytes",
        values.number(1024, _MOST),
        "10485760",
        "N",
        "an export file that grows larger is renamed to FILE.1, and FILE.1 to FILE.2  [10485760]",
    ),
    Option(
        "flow-export-files",
        values.number(1, 1000),
        "5",
        "N",
        "number of export files to keep, including the current one  [5]",
    ),
    Option(
        "query-socket",
        values.socket_path,
        QUERY_SOCKET,
        "PATH",
        f"UNIX socket at which the agent answers `ebpflb flows`; empty = off  [{QUERY_SOCKET}]",
    ),
)
