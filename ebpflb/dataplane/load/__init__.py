# SPDX-License-Identifier: Apache-2.0
"""From C text to pinned maps and programs: compile, cache, load, pin, replace the old generation.

Called by the agent and by commands that open pins. Only `compile` imports bcc, in a child process.
Decisions: docs/development/decisions/agent.md.
"""
