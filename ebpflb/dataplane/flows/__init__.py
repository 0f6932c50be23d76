# SPDX-License-Identifier: Apache-2.0
"""Connections and flows: expiry, conntrack entries, flow records, reserved ports, stale sockets.

Called by the agent's timers and by `view`, which counts active backends.
"""
