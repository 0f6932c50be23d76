# SPDX-License-Identifier: Apache-2.0
"""How others observe the agent: health, metrics and flows, and the HTTP servers for them.

Reads the dataplane through `dataplane.view` and `dataplane.flows`; the agent starts its parts.
Decisions: docs/development/decisions/observing.md.
"""
