# SPDX-License-Identifier: Apache-2.0
"""The agent of one node: programs Services and the state of the network into the kernel.

`process.run()` is the entry; `loop.Agent` is the only thread that programs Services. What other
threads own is in docs/development/architecture.md.
Decisions: docs/development/decisions/agent.md.
"""
