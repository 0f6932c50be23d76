# SPDX-License-Identifier: Apache-2.0
"""Prints the tests that the rules name, as arguments for pytest."""

from pathlib import Path

from tests.conformance.rules import named_tests, read_groups

print("\n".join(named_tests(read_groups(Path.cwd()))))
