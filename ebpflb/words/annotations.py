# SPDX-License-Identifier: Apache-2.0
"""The names of annotations."""

PREFIX = "ebpflb.io/"

# On a Pod or a Namespace, "false": connections of these pods are load-balanced only at tc.
SOCKET_LB = f"{PREFIX}socket-lb"

# On a Service: a name from words/scheduler.py.
SCHEDULER = f"{PREFIX}scheduler"
# On a Service: a value of the option with this name.
EJECTION = f"{PREFIX}ejection"
# On a Service: "true" or "false".
DSR = f"{PREFIX}dsr"
# On a Service: "true" or "false".
RETRY = f"{PREFIX}retry"
# On a Service: a number, and perhaps "drop".
MAX_CONNECTIONS = f"{PREFIX}max-connections"
# The same.
MAX_CONNECTIONS_PER_CLIENT = f"{PREFIX}max-connections-per-client"
# On a Service: NUMBER/s or NUMBER/min, and perhaps "burst NUMBER" and "drop".
NEW_CONNECTIONS_PER_CLIENT = f"{PREFIX}new-connections-per-client"
# On a Service: "pods", or LABEL=VALUE:WEIGHT, separated by commas.
WEIGHTS = f"{PREFIX}weights"
# On a Service: "idle DURATION, NUMBER/min", and perhaps "dry-run".
REBALANCE = f"{PREFIX}rebalance"
# On a Service: a duration, and perhaps by how many percent it may differ: 30m±10%.
MAX_CONNECTION_AGE = f"{PREFIX}max-connection-age"
# On a Service: "keep" or "reset".
ON_ENDPOINT_GONE = f"{PREFIX}on-endpoint-gone"
# On a Service: "reject", "drop" or "pass".
VIP_UNSERVED = f"{PREFIX}vip-unserved"
# On a Service: "drop" or "pass".
NO_LOCAL_ENDPOINT = f"{PREFIX}no-local-endpoint"
# On a Pod: a number.
WEIGHT = f"{PREFIX}weight"
# On a Service: NAME or NAMESPACE/NAME of the Service that is its backup.
BACKUP = f"{PREFIX}backup"
# On a Service: the namespaces whose Services may have it as their backup, or "*".
BACKUP_FOR = f"{PREFIX}backup-for"
# On a Service with a backup: a number of open connections.
SPILL_AT = f"{PREFIX}spill-at"

# On an EndpointSlice, Cilium's: a number.
SLICE_WEIGHT = "service.cilium.io/weight"

ANNOTATIONS = (
    *(SCHEDULER, EJECTION, DSR, RETRY),
    *(MAX_CONNECTIONS, MAX_CONNECTIONS_PER_CLIENT, NEW_CONNECTIONS_PER_CLIENT),
    *(WEIGHTS, WEIGHT, SLICE_WEIGHT),
    *(REBALANCE, MAX_CONNECTION_AGE, ON_ENDPOINT_GONE),
    *(BACKUP, BACKUP_FOR, SPILL_AT),
    *(VIP_UNSERVED, NO_LOCAL_ENDPOINT),
    SOCKET_LB,
)
