# SPDX-License-Identifier: Apache-2.0
"""Services in the maps: desired frontends in, ordered writes out, one array word as the commit.

`sync.Sync` is the door. Only the agent's loop writes through it; `explain` and `view` reuse the
encodings.
"""
