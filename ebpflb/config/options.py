# SPDX-License-Identifier: Apache-2.0
"""Every setting of an agent, declared once: its type, its check, its default, what it is for.

Flags, environment variables and keys of the settings file follow from Settings. So do the table in
docs/configuration.md and a part of the chart's schema: `python -m tests.options` writes them.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ebpflb.config import values
from ebpflb.config.cgroup import cgroup_root
from ebpflb.config.file_version import FileVersion
from ebpflb.config.label_selector import LabelSelector
from ebpflb.config.option import one_of, option, options_of
from ebpflb.config.values import PortRange
from ebpflb.words import annotations
from ebpflb.words.scheduler import TABLE_SIZE, Scheduler

BPFFS_ROOT = "/sys/fs/bpf/ebpflb"
METRICS_PORT = 10249
HEALTHZ_PORT = 10256
# Not Geneve's 6081, which OVN, Antrea and Cilium use.
DSR_PORT = 6089
METRICS_BIND_ADDRESS = f"127.0.0.1:{METRICS_PORT}"
HEALTHZ_BIND_ADDRESS = f"0.0.0.0:{HEALTHZ_PORT}"
QUERY_SOCKET = "/run/ebpflb/agent.sock"
OBSERVE_PORT = 10260
OBSERVE_TLS = "/etc/ebpflb/observe"
FLOW_HISTORY = "/var/cache/ebpflb/flows"
OOM_SCORE_ADJ = -999
# kube-proxy's own limit of nf_conntrack_max.
_MOST_FLOWS = 1048576
_MOST = 999_999_999


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings, checked. Times are in seconds.

    Without manifests the Kubernetes API is the source. No device patterns: those of
    dataplane/attach/devices.py. An empty metrics or healthz address: do not listen. bind_address:
    empty, or the node's primary address; an unspecified one (0.0.0.0, ::) says only which family
    is first. nodeport_addresses: CIDRs and values.NODEPORT_WORDS, none for all addresses.
    external_ips and load_balancer_ips: one of values.SERVED_IPS, or else CIDRs. A conntrack timeout
    or size of 0 is the dataplane's own. flow_export: empty, a file, or "-". query_socket: None for
    no such socket. service_selector, namespace_selector: None for all. config: the file that was
    read, if there was one.
    """

    # Where objects come from, and this node.
    manifests: Path | None = option(
        values.path,
        None,
        "PATH",
        "file or directory to watch for Service, EndpointSlice, Node and ServiceCIDR objects "
        "(YAML, JSON) instead of the Kubernetes API",
    )
    kubeconfig: Path | None = option(
        values.optional_path,
        "",
        "FILE",
        "kubeconfig file for the Kubernetes API  [the pod's ServiceAccount]",
    )
    master: str = option(
        values.url, "", "URL", "address of the API server; overrides the one in the kubeconfig"
    )
    api_servers: tuple[str, ...] = option(
        values.urls,
        "",
        "URL,...",
        "more API servers to fail over to, besides the endpoints of the Service default/kubernetes",
    )
    state_cache_max_age: float = option(
        values.duration,
        "1h",
        "TIME",
        "after a reboot, if the API server does not answer, serve what it had if that is no older; "
        "0 = keep nothing  [1h]",
    )
    service_proxy_name: str = option(
        values.label_value,
        "",
        "NAME",
        "serve only Services with the label service.kubernetes.io/service-proxy-name: NAME, which "
        "kube-proxy leaves alone  [those without this label]",
    )
    service_selector: LabelSelector | None = option(
        values.label_selector,
        "",
        "SELECTOR",
        "serve only Services with matching labels, such as canary=yes or tier in "
        "(web,api),!legacy, and leave the rest to kube-proxy  [all]",
    )
    namespace_selector: LabelSelector | None = option(
        values.label_selector,
        "",
        "SELECTOR",
        "serve only Services in Namespaces with matching labels; with --service-selector, both "
        "must match  [all]",
    )
    watch_pods: bool = option(
        values.boolean,
        "true",
        "BOOL",
        f"read the pods of this node: their names, and annotations {annotations.SOCKET_LB}; and "
        f"the labels of pods for Services with the annotation {annotations.WEIGHTS}  [true]",
    )
    events: bool = option(
        values.boolean, "true", "BOOL", "create Events for Services and Node  [true]"
    )
    node_name: str = option(
        values.node_name,
        lambda: os.uname().nodename.lower(),
        "NAME",
        "name of this node's Node object; decides which endpoints are local  [host name]",
        ("hostname-override",),
    )
    cgroup_root: Path = option(
        values.path,
        cgroup_root,
        "DIR",
        "cgroup v2 directory whose processes the socket LB serves  [cgroup v2 mount]",
    )
    bpffs_root: Path = option(
        values.path,
        BPFFS_ROOT,
        "DIR",
        f"directory for pinned maps, programs and links  [{BPFFS_ROOT}]",
    )
    host_devices: tuple[str, ...] = option(
        values.words,
        "",
        "PATTERN,...",
        "names of the node's uplinks and tunnels; +PATTERN adds to the detected ones  [detected]",
    )
    workload_devices: tuple[str, ...] = option(
        values.words,
        "",
        "PATTERN,...",
        "names of the host ends of pods' devices, matched before --host-devices; +PATTERN adds to "
        "the detected ones  [detected]",
    )
    socket_lb: Literal["all", "host"] = one_of(
        "all",
        "which processes use the socket LB: all, or (host) all except pods that tc serves  [all]",
    )
    forwarding: Literal["auto", "redirect", "stack"] = one_of(
        "auto",
        "what routes masqueraded packets: the BPF programs (redirect), bypassing netfilter's "
        "FORWARD chain and any CNI policies in it, or the kernel (stack)  [auto: stack if a "
        "policy engine is detected]",
    )
    attach: Literal["auto", "tcx", "clsact"] = one_of(
        "auto", "how to attach programs to devices  [auto: tcx if the kernel supports it]"
    )
    xdp: Literal["off", "auto", "native", "generic"] = one_of(
        "off",
        "at XDP, before the network stack, forward packets that leave the node again: in the "
        "driver where that is faster (auto) or wherever it is supported (native), or without "
        "driver support (generic, for tests)  [off]",
    )
    xdp_devices: tuple[str, ...] = option(
        values.words, "", "PATTERN,...", "names of the uplinks that --xdp applies to  [all]"
    )
    # Servers, logs and the process.
    metrics_bind_address: str = option(
        values.bind_address(METRICS_PORT),
        METRICS_BIND_ADDRESS,
        "IP:PORT",
        f"address for /metrics, /proxyMode and /status; empty = off  [{METRICS_BIND_ADDRESS}]",
    )
    metrics_services: bool = option(
        values.boolean,
        "true",
        "BOOL",
        "export metrics of each Service with traffic on this node  [true]",
    )
    metrics_backends: bool = option(
        values.boolean,
        "false",
        "BOOL",
        "also export metrics of each backend: four series each  [false]",
    )
    metrics_latency: bool = option(
        values.boolean,
        "false",
        "BOOL",
        "also export how long connects to each Service port take, and its round trip times, as "
        "histograms: 25 series each; records the events start and end, whatever --flow-events "
        "says  [false]",
    )
    metrics_clients: int = option(
        values.Number(0, 100000),
        "0",
        "NUMBER",
        "count flow records by client workload and Service, for at most this many pairs; 0 = none  "
        "[0]",
    )
    healthz_bind_address: str = option(
        values.bind_address(HEALTHZ_PORT),
        HEALTHZ_BIND_ADDRESS,
        "IP:PORT",
        f"address for /healthz and /livez; empty = off  [{HEALTHZ_BIND_ADDRESS}]",
    )
    bind_address_hard_fail: bool = option(
        values.boolean, "false", "BOOL", "exit if a server cannot listen on its address  [false]"
    )
    log_format: Literal["text", "json"] = one_of(
        "text", "key=value lines or JSON objects on stderr  [text]", aliases=("logging-format",)
    )
    verbosity: int = option(values.verbosity, "0", "N", "1 logs every sync  [0]", ("v",))
    oom_score_adj: int = option(
        values.Number(-1000, 1000),
        str(OOM_SCORE_ADJ),
        "N",
        f"how readily the kernel kills the agent when memory runs out  [{OOM_SCORE_ADJ}]",
    )
    # Traffic.
    bind_address: str = option(
        values.ip_or_nothing,
        "",
        "IP",
        "the node's primary address; nothing binds to it  [address of the default route]",
    )
    nodeport_addresses: tuple[str, ...] = option(
        values.nodeport_addresses,
        "",
        "CIDR|localhost|all|primary,...",
        "node addresses that accept NodePorts  [all]",
    )
    service_node_port_range: PortRange = option(
        values.node_port_range,
        "30000-32767",
        "FIRST-LAST",
        "the API server's option of this name: masquerading uses no port of it  [30000-32767]",
    )
    external_ips: tuple[str, ...] = option(
        values.served_ips,
        "serve",
        "serve|not-nodes|ignore|CIDR,...",
        "external IPs of Services to serve: all (serve), those that are no address of a node, none "
        "(ignore), or those in the CIDRs; never those in ServiceCIDRs and pod CIDRs  [serve]",
    )
    load_balancer_ips: tuple[str, ...] = option(
        values.served_ips,
        "serve",
        "serve|not-nodes|ignore|CIDR,...",
        "the same for load-balancer IPs  [serve]",
    )
    protected_ports: tuple[int, ...] = option(
        values.ports,
        "22,10250",
        "PORT,...",
        "ports of the node's own servers: at a node's addresses, no external or load-balancer IP "
        "gets them; nor those of the agent's servers  [22,10250]",
    )
    localhost_nodeports: bool = option(
        values.boolean,
        "true",
        "BOOL",
        "serve NodePorts on 127.0.0.1 to processes of the node, if --nodeport-addresses allows it, "
        "and on ::1 if it names that  [true]",
        ("iptables-localhost-nodeports",),
    )
    masquerade_all: bool = option(
        values.boolean,
        "false",
        "BOOL",
        "masquerade connections of every client, except under externalTrafficPolicy Local  [false]",
    )
    scheduler: str = option(
        values.OneOf(tuple(map(str, Scheduler))),
        Scheduler.RANDOM.value,
        "|".join(Scheduler),
        f"how to choose backends of Services without the annotation {annotations.SCHEDULER}  "
        f"[{Scheduler.RANDOM}]",
    )
    maglev_table_size: int = option(
        values.Prime(2, 65521),
        str(TABLE_SIZE),
        "PRIME",
        f"size of each lookup table of the schedulers maglev and source-hash  [{TABLE_SIZE}]",
    )
    dsr: Literal["off", "annotated", "all"] = one_of(
        "off",
        "direct server return: pods on other nodes see the client's address, and their nodes reply "
        f'directly to the client; for Services annotated {annotations.DSR}: "true" (annotated), or '
        'all but those annotated "false" (all); must be the same on all nodes  [off]',
    )
    dsr_port: int = option(
        values.Number(1, 65535),
        str(DSR_PORT),
        "PORT",
        f"UDP port of its Geneve packets between nodes; the same on all nodes  [{DSR_PORT}]",
    )
    dsr_key_file: Path | None = option(
        values.optional_path,
        "",
        "FILE",
        "one or two keys of these packets: the first is sent, others are dropped  [no key]",
    )
    detect_local_mode: Literal[
        "ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"
    ] = one_of(
        "ClusterCIDR",
        "how kube-proxy recognises traffic from this node's pods: ClusterCIDR, NodeCIDR, "
        "BridgeInterface or InterfaceNamePrefix  [ClusterCIDR]",
        metavar="MODE",
    )
    cluster_cidr: tuple[str, ...] = option(
        values.cidrs, "", "CIDR,...", "pod CIDRs of the cluster  [none]"
    )
    pod_bridge_interface: str = option(
        values.text, "", "NAME", "name of the bridge, for mode BridgeInterface"
    )
    pod_interface_name_prefix: str = option(
        values.text, "", "TEXT", "prefix of device names, for mode InterfaceNamePrefix"
    )
    ejection: int = option(
        values.ejection,
        "off",
        "off|on|N",
        "eject an endpoint for a while after N failed TCP or SCTP connections in a row (on: 5), "
        f"but never more than half of a Service's endpoints; the annotation {annotations.EJECTION} "
        "overrides this for a Service  [off]",
    )
    ejection_time: float = option(
        values.positive_duration,
        "10s",
        "TIME",
        "how long the first ejection of an endpoint lasts; doubles with each further one in a "
        "row, up to 5m  [10s]",
    )
    # Periods and timeouts.
    sync_period: float = option(
        values.positive_duration,
        "30s",
        "TIME",
        "longest wait until a failed sync is retried or lost state restored; the agent is "
        "unhealthy once a change has waited twice as long  [30s]",
        ("iptables-sync-period", "ipvs-sync-period"),
    )
    min_sync_period: float = option(
        values.duration,
        "0s",
        "TIME",
        "minimum time between syncs  [0s: sync at once]",
        ("iptables-min-sync-period", "ipvs-min-sync-period"),
    )
    conntrack_tcp_timeout_established: float = option(
        values.duration,
        "24h",
        "TIME",
        "idle timeout of established TCP flows; 0 = the built-in 24h  [24h]",
    )
    conntrack_tcp_timeout_close_wait: float = option(
        values.duration,
        "1h",
        "TIME",
        "idle timeout of TCP flows that one side has closed; 0 = as for established flows  [1h]",
    )
    conntrack_udp_timeout: float = option(
        values.duration,
        "0s",
        "TIME",
        "idle timeout of UDP flows that are not streams; 0 = the built-in 30s  [0s]",
    )
    conntrack_udp_timeout_stream: float = option(
        values.duration, "0s", "TIME", "idle timeout of UDP streams; 0 = the built-in 2m  [0s]"
    )
    # Sizes.
    conntrack_max_per_core: int = option(
        values.Number(0, _MOST_FLOWS),
        "32768",
        "N",
        "room for this many established flows per CPU, memory permitting  [32768]",
    )
    conntrack_min: int = option(
        values.Number(0, _MOST_FLOWS),
        "131072",
        "N",
        "room for at least this many established flows, however few CPUs there are  [131072]",
    )
    # Flow records: which are made, and where they go.
    flow_events: tuple[str, ...] = option(
        values.flow_events,
        "end,refused,dropped",
        "EVENT,...",
        "flow events to record: start, end, refused, dropped, or the word none  "
        "[end,refused,dropped]",
    )
    flow_sample: int = option(
        values.Number(0, _MOST),
        "1",
        "N",
        "record the start and end of one flow in N; 0 = none  [1: every flow]",
    )
    flow_rate: int = option(
        values.Number(0, _MOST),
        "1000",
        "N",
        "maximum flow records per second and CPU; 0 = no limit  [1000]",
    )
    flow_history: int = option(
        values.Number(1, 1048576),
        "4096",
        "N",
        "number of recent flow records to keep for queries  [4096]",
    )
    flow_history_bytes: int = option(
        values.Number(0, 1 << 30),
        "33554432",
        "N",
        "size of the files with the last 24 hours: half of it for flow records, half for what was "
        "served; 0 = none  [33554432]",
    )
    flow_history_directory: Path = option(
        values.path,
        FLOW_HISTORY,
        "DIR",
        f"where these files are  [{FLOW_HISTORY}]",
    )
    flow_export: str = option(
        values.text,
        "",
        "FILE",
        "append each flow record to this file as a line of JSON; - = standard output  [no export]",
    )
    flow_export_max_bytes: int = option(
        values.Number(1024, _MOST),
        "10485760",
        "N",
        "size above which the export file is renamed to FILE.1, and FILE.1 to FILE.2  [10485760]",
    )
    flow_export_files: int = option(
        values.Number(1, 1000),
        "5",
        "N",
        "number of export files to keep, including the current one  [5]",
    )
    query_socket: Path | None = option(
        values.socket_path,
        QUERY_SOCKET,
        "PATH",
        f"UNIX socket that `ebpflb flows` queries; empty = off  [{QUERY_SOCKET}]",
    )
    observe_bind_address: str = option(
        values.bind_address(OBSERVE_PORT),
        "",
        "IP:PORT",
        "address at which the relay may ask the same over TLS; empty = off  [off]",
    )
    observe_tls_directory: Path = option(
        values.path,
        OBSERVE_TLS,
        "DIR",
        f"where tls.crt, tls.key and ca.crt for that are  [{OBSERVE_TLS}]",
    )
    config: FileVersion | None = None


OPTIONS = options_of(Settings)
