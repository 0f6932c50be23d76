# SPDX-License-Identifier: Apache-2.0
"""The API group of the relay, and the names by which relay and agents know each other."""

GROUP = "observe.ebpflb.io"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
PATH = f"/apis/{API_VERSION}"

FRONTENDS, RATES, FLOWS = "frontends", "rates", "flows"
CONNECTIONS, EXPLANATIONS = "connections", "explanations"
KINDS = {
    FRONTENDS: "Frontend",
    RATES: "Rate",
    FLOWS: "Flow",
    CONNECTIONS: "Connection",
    EXPLANATIONS: "Explanation",
}
"""Kind of each resource. Its lists have the items that the plugin prints with `-o json`."""

AGENT = f"agent.{GROUP}"
"""In the certificates of agents, as the name of a server."""
RELAY = f"relay.{GROUP}"
"""In the certificate of the relay, as the common name of a client."""
