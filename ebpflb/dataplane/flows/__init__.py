# SPDX-License-Identifier: Apache-2.0
"""Connections and flows: timeouts, expiry, source ports, conntrack entries, records, stale sockets.

Called by the agent's timers and by `view`, which counts active backends.
Decisions: docs/development/decisions/flows.md.
"""
