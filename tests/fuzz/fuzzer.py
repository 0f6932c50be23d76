# SPDX-License-Identifier: Apache-2.0
"""What a fuzzer is."""

from collections.abc import Callable
from contextlib import AbstractContextManager

Round = Callable[[int], str]
"""Plays the round of a seed and says in a line what it met; raises what does not hold.

The same seed draws the same, whatever was played before.
"""

Fuzzer = Callable[[], AbstractContextManager[Round]]
"""Makes what all its rounds need, and removes it."""
