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
# On a Service: "pods", or LABEL=VALUE:WEIGHT, separated by commas.
WEIGHTS = f"{PREFIX}weights"
# On a Pod: a number.
WEIGHT = f"{PREFIX}weight"

ANNOTATIONS = (SCHEDULER, EJECTION, DSR, RETRY, WEIGHTS, WEIGHT, SOCKET_LB)
