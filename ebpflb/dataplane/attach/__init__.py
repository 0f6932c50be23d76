# SPDX-License-Identifier: Apache-2.0
"""Which devices and cgroups run our programs, and the maps that describe those devices.

`hooks.Hooks` is the entry point: it compares a snapshot of the network with what is attached and
applies the difference. Called by the agent; `doctor` and the CLI read `attachments`.
Decisions: docs/development/decisions/networks.md.
"""
