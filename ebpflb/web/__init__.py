# SPDX-License-Identifier: Apache-2.0
"""HTTP for the agent's ports, its query socket and the plugin's page: one server, one thread.

It deals with sockets and requests; what is answered comes from elsewhere. h11 parses and frames.
Decisions: docs/development/decisions/agent.md.
"""
