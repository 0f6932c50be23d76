# SPDX-License-Identifier: Apache-2.0
"""A ring of flow records without a kernel."""


class Ring:
    """Stands in for a map and for its reading end. tests/bpf/flows/test_ring.py has real ones."""

    def __init__(self, *batches):
        self.batches = list(batches)
        self.closed = False

    def read(self):
        batch = self.batches.pop(0) if self.batches else []
        if isinstance(batch, Exception):
            raise batch
        return batch

    def close(self):
        self.closed = True
