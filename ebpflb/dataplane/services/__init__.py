# SPDX-License-Identifier: Apache-2.0
"""Services in the maps: takes desired frontends, writes in order, commits with one array word.

`sync.Sync` is the entry point. Only the agent's loop writes through it; `explain` and `view` reuse
the encodings.
Decisions: docs/development/decisions/services.md.
"""
