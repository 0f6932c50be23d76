# SPDX-License-Identifier: Apache-2.0
"""The only reason for which a test may be skipped: the running kernel lacks a feature."""

from typing import NoReturn

from _pytest.outcomes import Skipped  # pytest.skip.Exception, under a name that has a type


class KernelLacks(Skipped):
    """A skip that the session accepts; every other one counts as a failure."""


def kernel_lacks(feature: str, reason: str) -> NoReturn:
    """Skip the running test. `reason` is the kernel's answer, for the summary."""
    __tracebackhide__ = True
    raise KernelLacks(f"kernel lacks {feature}: {reason}", allow_module_level=True)
