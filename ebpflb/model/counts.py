# SPDX-License-Identifier: Apache-2.0
"""What the kernel counts of a frontend or a backend."""

from typing import NamedTuple


class Counts(NamedTuple):
    """The numbers of struct lb_counts, in its order. bytes: of payload.

    A tuple, for a scrape makes tens of thousands.
    """

    connections: int = 0
    refused: int = 0
    dropped: int = 0
    failed: int = 0
    retransmits: int = 0
    original_packets: int = 0
    original_bytes: int = 0
    reply_packets: int = 0
    reply_bytes: int = 0
