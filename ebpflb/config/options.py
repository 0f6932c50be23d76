# SPDX-License-Identifier: Apache-2.0
"""Every setting of an agent in one table: its names, its default, its check, what it is for."""

import os

from ebpflb.config import values
from ebpflb.config.cgroup import cgroup_root
from ebpflb.config.option import Option
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
OOM_SCORE_ADJ = -999
# kube-proxy's own limit of nf_conntrack_max.
_MOST_FLOWS = 1048576
_MOST = 999_999_999


OPTIONS: tuple[Option, ...] = (
    # Where objects come from, and this node.
    Option(
        "manifests",
        values.path,
        None,
        "PATH",
        "file or directory to watch for Service, EndpointSlice, Node and ServiceCIDR objects "
        "(YAML, JSON) instead of the Kubernetes API",
    ),
    Option(
        "kubeconfig",
        values.optional_path,
        "",
        "FILE",
        "kubeconfig file for the Kubernetes API  [the pod's ServiceAccount]",
    ),
    Option(
        "master",
        values.url,
        "",
        "URL",
        "address of the API server; overrides the one in the kubeconfig",
    ),
    Option(
        "api-servers",
        values.urls,
        "",
        "URL,...",
        "more API servers to fail over to, besides the endpoints of the Service default/kubernetes",
    ),
    Option(
        "state-cache-max-age",
        values.duration,
        "1h",
        "TIME",
        "after a reboot, if the API server does not answer, serve what it had if that is no older; "
        "0 = keep nothing  [1h]",
    ),
    Option(
        "service-proxy-name",
        values.label_value,
        "",
        "NAME",
        "serve only Services with the label service.kubernetes.io/service-proxy-name: NAME, which "
        "kube-proxy leaves alone  [those without this label]",
    ),
    Option(
        "service-selector",
        values.label_selector,
        "",
        "SELECTOR",
        "serve only Services with matching labels, such as canary=yes or tier in "
        "(web,api),!legacy, and leave the rest to kube-proxy  [all]",
    ),
    Option(
        "namespace-selector",
        values.label_selector,
        "",
        "SELECTOR",
        "serve only Services in Namespaces with matching labels; with --service-selector, both "
        "must match  [all]",
    ),
    Option(
        "watch-pods",
        values.boolean,
        "true",
        "BOOL",
        f"read the pods of this node: their names, and annotations {annotations.SOCKET_LB}  [true]",
    ),
    Option("events", values.boolean, "true", "BOOL", "create Events for Services and Node  [true]"),
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
        f"directory for pinned maps, programs and links  [{BPFFS_ROOT}]",
    ),
    Option(
        "host-devices",
        values.words,
        "",
        "PATTERN,...",
        "names of the node's uplinks and tunnels; +PATTERN adds to the detected ones  [detected]",
    ),
    Option(
        "workload-devices",
        values.words,
        "",
        "PATTERN,...",
        "names of the host ends of pods' devices, matched before --host-devices; +PATTERN adds to "
        "the detected ones  [detected]",
    ),
    Option(
        "socket-lb",
        values.choice("all", "host"),
        "all",
        "all|host",
        "which processes use the socket LB: all, or (host) all except pods that tc serves  [all]",
    ),
    Option(
        "forwarding",
        values.choice("auto", "redirect", "stack"),
        "auto",
        "auto|redirect|stack",
        "what routes masqueraded packets: the BPF programs (redirect), bypassing netfilter's "
        "FORWARD chain and any CNI policies in it, or the kernel (stack)  [auto: stack if a "
        "policy engine is detected]",
    ),
    Option(
        "attach",
        values.choice("auto", "tcx", "clsact"),
        "auto",
        "auto|tcx|clsact",
        "how to attach programs to devices  [auto: tcx if the kernel supports it]",
    ),
    Option(
        "xdp",
        values.choice("off", "auto", "native", "generic"),
        "off",
        "off|auto|native|generic",
        "at XDP, before the network stack, forward packets that leave the node again: in the "
        "driver where that is faster (auto) or wherever it is supported (native), or without "
        "driver support (generic, for tests)  [off]",
    ),
    Option(
        "xdp-devices",
        values.words,
        "",
        "PATTERN,...",
        "names of the uplinks that --xdp applies to  [all]",
    ),
    # Servers, logs and the process.
    Option(
        "metrics-bind-address",
        values.bind_address(METRICS_PORT),
        METRICS_BIND_ADDRESS,
        "IP:PORT",
        f"address for /metrics, /proxyMode and /status; empty = off  [{METRICS_BIND_ADDRESS}]",
    ),
    Option(
        "metrics-services",
        values.boolean,
        "true",
        "BOOL",
        "export metrics of each Service with traffic on this node  [true]",
    ),
    Option(
        "metrics-backends",
        values.boolean,
        "false",
        "BOOL",
        "also export metrics of each backend: four series each  [false]",
    ),
    Option(
        "metrics-clients",
        values.number(0, 100000),
        "0",
        "NUMBER",
        "count flow records by client workload and Service, for at most this many pairs; 0 = none  "
        "[0]",
    ),
    Option(
        "healthz-bind-address",
        values.bind_address(HEALTHZ_PORT),
        HEALTHZ_BIND_ADDRESS,
        "IP:PORT",
        f"address for /healthz and /livez; empty = off  [{HEALTHZ_BIND_ADDRESS}]",
    ),
    Option(
        "bind-address-hard-fail",
        values.boolean,
        "false",
        "BOOL",
        "exit if a server cannot listen on its address  [false]",
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
        "CIDR|localhost|all|primary,...",
        "node addresses that accept NodePorts  [all]",
    ),
    Option(
        "service-node-port-range",
        values.node_port_range,
        "30000-32767",
        "FIRST-LAST",
        "the API server's option of this name: masquerading uses no port of it  [30000-32767]",
    ),
    Option(
        "external-ips",
        values.served_ips,
        "serve",
        "serve|not-nodes|ignore|CIDR,...",
        "external IPs of Services to serve: all (serve), those that are no address of a node, none "
        "(ignore), or those in the CIDRs; never those in ServiceCIDRs and pod CIDRs  [serve]",
    ),
    Option(
        "load-balancer-ips",
        values.served_ips,
        "serve",
        "serve|not-nodes|ignore|CIDR,...",
        "the same for load-balancer IPs  [serve]",
    ),
    Option(
        "protected-ports",
        values.ports,
        "22,10250",
        "PORT,...",
        "ports of the node's own servers: at a node's addresses, no external or load-balancer IP "
        "gets them; nor those of the agent's servers  [22,10250]",
    ),
    Option(
        "localhost-nodeports",
        values.boolean,
        "true",
        "BOOL",
        "serve NodePorts on 127.0.0.1 to processes of the node, if --nodeport-addresses allows it, "
        "and on ::1 if it names that  [true]",
        ("iptables-localhost-nodeports",),
    ),
    Option(
        "masquerade-all",
        values.boolean,
        "false",
        "BOOL",
        "masquerade connections of every client, except under externalTrafficPolicy Local  [false]",
    ),
    Option(
        "scheduler",
        values.choice(*map(str, Scheduler)),
        Scheduler.RANDOM.value,
        "|".join(Scheduler),
        f"how to choose backends of Services without the annotation {annotations.SCHEDULER}  "
        f"[{Scheduler.RANDOM}]",
    ),
    Option(
        "maglev-table-size",
        values.prime(2, 65521),
        str(TABLE_SIZE),
        "PRIME",
        f"size of each lookup table of the schedulers maglev and source-hash  [{TABLE_SIZE}]",
    ),
    Option(
        "dsr",
        values.choice("off", "annotated", "all"),
        "off",
        "off|annotated|all",
        "direct server return: pods on other nodes see the client's address, and their nodes reply "
        f'directly to the client; for Services annotated {annotations.DSR}: "true" (annotated), or '
        'all but those annotated "false" (all); must be the same on all nodes  [off]',
    ),
    Option(
        "dsr-port",
        values.number(1, 65535),
        str(DSR_PORT),
        "PORT",
        f"UDP port of its Geneve packets between nodes; the same on all nodes  [{DSR_PORT}]",
    ),
    Option(
        "dsr-key-file",
        values.optional_path,
        "",
        "FILE",
        "one or two keys of these packets: the first is sent, others are dropped  [no key]",
    ),
    Option(
        "detect-local-mode",
        values.choice("ClusterCIDR", "NodeCIDR", "BridgeInterface", "InterfaceNamePrefix"),
        "ClusterCIDR",
        "MODE",
        "how kube-proxy recognises traffic from this node's pods: ClusterCIDR, NodeCIDR, "
        "BridgeInterface or InterfaceNamePrefix  [ClusterCIDR]",
    ),
    Option(
        "cluster-cidr",
        values.cidrs,
        "",
        "CIDR,...",
        "pod CIDRs of the cluster  [none]",
    ),
    Option(
        "pod-bridge-interface",
        values.text,
        "",
        "NAME",
        "name of the bridge, for mode BridgeInterface",
    ),
    Option(
        "pod-interface-name-prefix",
        values.text,
        "",
        "TEXT",
        "prefix of device names, for mode InterfaceNamePrefix",
    ),
    Option(
        "ejection",
        values.ejection,
        "off",
        "off|on|N",
        "eject an endpoint for a while after N failed TCP or SCTP connections in a row (on: 5), "
        f"but never more than half of a Service's endpoints; the annotation {annotations.EJECTION} "
        "overrides this for a Service  [off]",
    ),
    Option(
        "ejection-time",
        values.positive_duration,
        "10s",
        "TIME",
        "how long the first ejection of an endpoint lasts; doubles with each further one in a "
        "row, up to 5m  [10s]",
    ),
    # Periods and timeouts.
    Option(
        "sync-period",
        values.positive_duration,
        "30s",
        "TIME",
        "longest wait until a failed sync is retried or lost state restored; the agent is "
        "unhealthy once a change has waited twice as long  [30s]",
        ("iptables-sync-period", "ipvs-sync-period"),
    ),
    Option(
        "min-sync-period",
        values.duration,
        "0s",
        "TIME",
        "minimum time between syncs  [0s: sync at once]",
        ("iptables-min-sync-period", "ipvs-min-sync-period"),
    ),
    Option(
        "conntrack-tcp-timeout-established",
        values.duration,
        "24h",
        "TIME",
        "idle timeout of established TCP flows; 0 = the built-in 24h  [24h]",
    ),
    Option(
        "conntrack-tcp-timeout-close-wait",
        values.duration,
        "1h",
        "TIME",
        "idle timeout of TCP flows that one side has closed; 0 = as for established flows  [1h]",
    ),
    Option(
        "conntrack-udp-timeout",
        values.duration,
        "0s",
        "TIME",
        "idle timeout of UDP flows that are not streams; 0 = the built-in 30s  [0s]",
    ),
    Option(
        "conntrack-udp-timeout-stream",
        values.duration,
        "0s",
        "TIME",
        "idle timeout of UDP streams; 0 = the built-in 2m  [0s]",
    ),
    # Sizes.
    Option(
        "conntrack-max-per-core",
        values.number(0, _MOST_FLOWS),
        "32768",
        "N",
        "room for this many established flows per CPU, memory permitting  [32768]",
    ),
    Option(
        "conntrack-min",
        values.number(0, _MOST_FLOWS),
        "131072",
        "N",
        "room for at least this many established flows, however few CPUs there are  [131072]",
    ),
    # Flow records: which are made, and where they go.
    Option(
        "flow-events",
        values.flow_events,
        "end,refused,dropped",
        "EVENT,...",
        "flow events to record: start, end, refused, dropped, or the word none  "
        "[end,refused,dropped]",
    ),
    Option(
        "flow-sample",
        values.number(0, _MOST),
        "1",
        "N",
        "record the start and end of one flow in N; 0 = none  [1: every flow]",
    ),
    Option(
        "flow-rate",
        values.number(0, _MOST),
        "1000",
        "N",
        "maximum flow records per second and CPU; 0 = no limit  [1000]",
    ),
    Option(
        "flow-history",
        values.number(1, 1048576),
        "4096",
        "N",
        "number of recent flow records to keep for queries  [4096]",
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
        "size above which the export file is renamed to FILE.1, and FILE.1 to FILE.2  [10485760]",
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
        f"UNIX socket that `ebpflb flows` queries; empty = off  [{QUERY_SOCKET}]",
    ),
)
