# SPDX-License-Identifier: Apache-2.0
"""Every setting of an agent in one table: its names, its default, its check, what it is for."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ebpflb.config import values
from ebpflb.config.flow_options import FLOW_OPTIONS
from ebpflb.config.option import Option, text_default
from ebpflb.errors import ConfigError, ProbeError

BPFFS_ROOT = "/sys/fs/bpf/ebpflb"
METRICS_PORT = 10249
HEALTHZ_PORT = 10256
METRICS_BIND_ADDRESS = f"127.0.0.1:{METRICS_PORT}"
HEALTHZ_BIND_ADDRESS = f"0.0.0.0:{HEALTHZ_PORT}"
OOM_SCORE_ADJ = -999
# kube-proxy's own bound of nf_conntrack_max.
_MOST_FLOWS = 1048576

# Kubernetes puts these into a pod's environment when a Service is called ebpflb.
_SERVICE_LINK = re.compile(r"EBPFLB(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_\w+)?)")
_MOUNTS = Path("/proc/mounts")


class Given(NamedTuple):
    """A value that somebody gave, and the name under which errors speak of it."""

    value: object
    where: str


def is_service_link(name: str) -> bool:
    """Whether a variable only tells where a Service is."""
    return bool(_SERVICE_LINK.fullmatch(name))


def by_option(given: Mapping[str, Given]) -> dict[str, Given]:
    """Values by the option's own name. ConfigError if two names of one are there."""
    found: dict[str, Given] = {}
    names = {name: option.name for option in OPTIONS for name in option.names}
    for name, one in given.items():
        option = names[name]
        if option in found:
            raise ConfigError(f"{one.where}: the same setting as {found[option].where}: give one")
        found[option] = one
    return found


def cgroup_root(mounts: Path = _MOUNTS) -> str:
    """Where cgroup v2 is mounted, the first place if there are several. Raises ProbeError."""
    for line in mounts.read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return where.encode().decode("unicode_escape")
    raise ProbeError(
        "cgroup v2 is not mounted: run `mount -t cgroup2 none DIR`, or name it with --cgroup-root"
    )


_OWN: tuple[Option, ...] = (
    Option(
        "manifests",
        values.path,
        None,
        "PATH",
        "file or directory with Service, EndpointSlice, Node and ServiceCIDR objects (YAML, JSON), "
        "watched, instead of the Kubernetes API",
    ),
    Option(
        "kubeconfig",
        values.optional_path,
        text_default(""),
        "FILE",
        "how to reach the Kubernetes API  [as a pod does]",
    ),
    Option(
        "master", values.url, text_default(""), "URL", "API server, instead of the kubeconfig's"
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
        "cgroup v2 directory whose processes are served at the socket  [cgroup v2 mount]",
    ),
    Option(
        "bpffs-root",
        values.path,
        text_default(BPFFS_ROOT),
        "DIR",
        f"where pins live  [{BPFFS_ROOT}]",
    ),
    Option(
        "host-devices",
        values.words,
        text_default(""),
        "PATTERN,...",
        "uplinks and tunnels of the node  [eth*, en*, bond*, vxlan*, wg* and their like]",
    ),
    Option(
        "workload-devices",
        values.words,
        text_default(""),
        "PATTERN,...",
        "the host's end of pods' devices, looked at first  [veth*, cali*, eni* and their like]",
    ),
    Option(
        "socket-lb",
        values.choice("all", "host"),
        text_default("all"),
        "all|host",
        "whom to serve at the socket: everyone, or all but pods that tc serves  [all]",
    ),
    Option(
        "attach",
        values.choice("auto", "tcx", "clsact"),
        text_default("auto"),
        "auto|tcx|clsact",
        "how to attach to devices  [auto: tcx where the kernel has it]",
    ),
)

_SERVERS: tuple[Option, ...] = (
    Option(
        "metrics-bind-address",
        values.bind_address(METRICS_PORT),
        text_default(METRICS_BIND_ADDRESS),
        "IP:PORT",
        f"/metrics, /proxyMode, /status; empty = off  [{METRICS_BIND_ADDRESS}]",
    ),
    Option(
        "metrics-services",
        values.boolean,
        text_default("true"),
        "BOOL",
        "metrics of each Service that this node has traffic for  [true]",
    ),
    Option(
        "metrics-backends",
        values.boolean,
        text_default("false"),
        "BOOL",
        "metrics of each backend too: four series for each  [false]",
    ),
    Option(
        "healthz-bind-address",
        values.bind_address(HEALTHZ_PORT),
        text_default(HEALTHZ_BIND_ADDRESS),
        "IP:PORT",
        f"/healthz, /livez; empty = off  [{HEALTHZ_BIND_ADDRESS}]",
    ),
    Option(
        "bind-address-hard-fail",
        values.boolean,
        text_default("false"),
        "BOOL",
        "exit when a server cannot listen  [false]",
    ),
    Option(
        "log-format",
        values.choice("text", "json"),
        text_default("text"),
        "text|json",
        "key=value lines or JSON objects on stderr  [text]",
        ("logging-format",),
    ),
    Option("verbosity", values.verbosity, text_default("0"), "N", "1 logs every sync  [0]", ("v",)),
    Option(
        "oom-score-adj",
        values.number(-1000, 1000),
        text_default(str(OOM_SCORE_ADJ)),
        "N",
        f"how ready the kernel is to end the agent when memory runs out  [{OOM_SCORE_ADJ}]",
    ),
)

_TRAFFIC: tuple[Option, ...] = (
    Option(
        "bind-address",
        values.ip_or_nothing,
        text_default(""),
        "IP",
        "the node's primary address; nothing binds to it  [that of the default route]",
    ),
    Option(
        "nodeport-addresses",
        values.nodeport_addresses,
        text_default(""),
        "CIDR,...",
        "node addresses that accept NodePorts, or the word primary  [all]",
    ),
    Option(
        "localhost-nodeports",
        values.boolean,
        text_default("true"),
        "BOOL",
        "NodePorts on 127.0.0.1, for processes of the node, if --nodeport-addresses admits it  "
        "[true]",
        ("iptables-localhost-nodeports",),
    ),
    Option(
        "masquerade-all",
        values.boolean,
        text_default("false"),
        "BOOL",
        "backends see a node's address as the client, except under externalTrafficPolicy Local  "
        "[false]",
    ),
    Option(
        "detect-local-mode",
        values.choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
        text_default("ClusterCIDR"),
        "MODE",
        "how to recognise traffic of this node's pods: ClusterCIDR, NodeCIDR, BridgeInterface or "
        "InterfaceNamePrefix  [ClusterCIDR]",
    ),
    Option(
        "cluster-cidr",
        values.cidrs,
        text_default(""),
        "CIDR,...",
        "addresses of the cluster's pods  [none]",
    ),
    Option(
        "pod-bridge-interface", values.text, text_default(""), "NAME", "bridge of BridgeInterface"
    ),
    Option(
        "pod-interface-name-prefix", values.text, text_default(""), "TEXT", "of InterfaceNamePrefix"
    ),
)

_TIMES: tuple[Option, ...] = (
    Option(
        "sync-period",
        values.positive_duration,
        text_default("30s"),
        "TIME",
        "how soon what failed or was lost is repaired; unhealthy after twice that  [30s]",
        ("iptables-sync-period", "ipvs-sync-period"),
    ),
    Option(
        "min-sync-period",
        values.duration,
        text_default("0s"),
        "TIME",
        "shortest time between two syncs  [0s: at once]",
        ("iptables-min-sync-period", "ipvs-min-sync-period"),
    ),
    Option(
        "conntrack-tcp-timeout-established",
        values.duration,
        text_default("24h"),
        "TIME",
        "idle established TCP flows; 0 = the built-in 24h  [24h]",
    ),
    Option(
        "conntrack-tcp-timeout-close-wait",
        values.duration,
        text_default("1h"),
        "TIME",
        "idle TCP flows that one side has closed; 0 = as established ones  [1h]",
    ),
    Option(
        "conntrack-udp-timeout",
        values.duration,
        text_default("0s"),
        "TIME",
        "idle UDP flows without an answer; 0 = the built-in 3m  [0s]",
    ),
    Option(
        "conntrack-udp-timeout-stream",
        values.duration,
        text_default("0s"),
        "TIME",
        "idle UDP flows with answers; 0 = the built-in 3m  [0s]",
    ),
)

_SIZES: tuple[Option, ...] = (
    Option(
        "conntrack-max-per-core",
        values.number(0, _MOST_FLOWS),
        text_default("0"),
        "N",
        "flows per CPU that there is room for, if that is more than built in  [0]",
    ),
    Option(
        "conntrack-min",
        values.number(0, _MOST_FLOWS),
        text_default("0"),
        "N",
        "flows that there is room for whatever the number of CPUs  [0: the built-in 65536]",
    ),
)

OPTIONS: tuple[Option, ...] = _OWN + _SERVERS + _TRAFFIC + _TIMES + _SIZES + FLOW_OPTIONS
