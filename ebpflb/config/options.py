# SPDX-License-Identifier: Apache-2.0
"""Every setting of an agent in one table: its names, its default, its check, what it is for."""

import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ebpflb.config import values
from ebpflb.errors import ConfigError, ProbeError

ENVIRONMENT_PREFIX = "EBPFLB_"
BPFFS_ROOT = "/sys/fs/bpf/ebpflb"
METRICS_PORT = 10249
HEALTHZ_PORT = 10256
METRICS_BIND_ADDRESS = f"127.0.0.1:{METRICS_PORT}"
HEALTHZ_BIND_ADDRESS = f"0.0.0.0:{HEALTHZ_PORT}"
QUERY_SOCKET = "/run/ebpflb/agent.sock"
OOM_SCORE_ADJ = -999
# kube-proxy's own bound of nf_conntrack_max.
_MOST_FLOWS = 1048576
_MOST = 999_999_999

_LISTS = (values.words, values.cidrs, values.nodeport_addresses, values.flow_events)
# Kubernetes puts these into a pod's environment when a Service is called ebpflb.
_SERVICE_LINK = re.compile(r"EBPFLB(_\w+)?_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_\w+)?)")
_MOUNTS = Path("/proc/mounts")


class Option(NamedTuple):
    """One setting: its name as flag and YAML key, how a value is checked, and what it is for.

    parse takes a string (flag, environment) or a YAML value and raises ValueError. default is the
    text to parse when nobody sets the option, or a function that finds it; without one the value is
    None. aliases: kube-proxy's names for the option, accepted wherever the name is.
    """

    name: str
    parse: Callable[[object], Any]
    default: str | Callable[[], str] | None
    metavar: str
    help: str
    aliases: tuple[str, ...] = ()

    @property
    def field(self) -> str:
        """The name in Settings."""
        return self.name.replace("-", "_")

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)

    @property
    def is_list(self) -> bool:
        """Whether it may be given several times."""
        return self.parse in _LISTS

    @property
    def is_switch(self) -> bool:
        """Whether a flag without a value means true."""
        return self.parse is values.boolean

    @property
    def variable(self) -> str:
        return variable(self.name)

    def default_value(self) -> Any:
        """The checked default. Raises what finding it raises."""
        text = self.default() if callable(self.default) else self.default
        return None if text is None else self.parse(text)


class Given(NamedTuple):
    """A value from a flag, a variable or a file, and what errors call that place."""

    value: object
    where: str


def variable(name: str) -> str:
    """The environment variable of an option's name or alias."""
    return ENVIRONMENT_PREFIX + name.replace("-", "_").upper()


def is_service_link(name: str) -> bool:
    """Whether Kubernetes set this variable, for a Service called ebpflb."""
    return bool(_SERVICE_LINK.fullmatch(name))


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
        "uplinks and tunnels of the node  [eth*, en*, bond*, vxlan*, wg* and similar]",
    ),
    Option(
        "workload-devices",
        values.words,
        "",
        "PATTERN,...",
        "host side of the pods' devices; matched before --host-devices  [veth*, cali*, eni* "
        "and similar]",
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
        "attach",
        values.choice("auto", "tcx", "clsact"),
        "auto",
        "auto|tcx|clsact",
        "how to attach programs to devices  [auto: tcx where the kernel has it]",
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
        "timeout of idle UDP flows without replies; 0 = the built-in 3m  [0s]",
    ),
    Option(
        "conntrack-udp-timeout-stream",
        values.duration,
        "0s",
        "TIME",
        "timeout of idle UDP flows with replies; 0 = the built-in 3m  [0s]",
    ),
    # Sizes.
    Option(
        "conntrack-max-per-core",
        values.number(0, _MOST_FLOWS),
        "0",
        "N",
        "room for this many flows per CPU, if that is more than the built-in size  [0]",
    ),
    Option(
        "conntrack-min",
        values.number(0, _MOST_FLOWS),
        "0",
        "N",
        "room for this many flows, whatever the number of CPUs  [0: the built-in 65536]",
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
