# SPDX-License-Identifier: Apache-2.0
"""What others may see of the agent: health, metrics, flows, and the HTTP servers that show them.

Reads the dataplane through `dataplane.view` and `dataplane.flows`; the agent starts its parts.
"""
