# SPDX-License-Identifier: Apache-2.0
"""A fake iptables-legacy, without a kernel."""


class Legacy:
    """One table with one layout, and the calls made to it."""

    def __init__(self, *chains):
        self.rules = 1
        self.chains = set(chains)
        self.reads = 0

    def layout(self, _):
        return self.rules

    def chains_of(self, _, names):
        self.reads += 1
        return self.chains & set(names)
