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
# On a Service: "pods", or LABEL=VALUE:WEIGHT, separated by commas.
WEIGHTS = f"{PREFIX}weights"
# On a Pod: a number.
WEIGHT = f"{PREFIX}weight"

# On an EndpointSlice, Cilium's: a number.
SLICE_WEIGHT = "service.cilium.io/weight"

ANNOTATIONS = (SCHEDULER, EJECTION, DSR, WEIGHTS, WEIGHT, SOCKET_LB)
