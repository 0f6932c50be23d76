# SPDX-License-Identifier: Apache-2.0
"""The kernel side of a node: compile, load, attach, write maps, and read them back.

Each subpackage has an interface of its own; import-linter checks which may call which. `agent`
calls services, attach, load and flows; `observe` and `cli` read view, explain and doctor.
"""
