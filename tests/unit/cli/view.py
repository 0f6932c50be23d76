# SPDX-License-Identifier: Apache-2.0
"""The maps of a node with a few Services."""

from pathlib import Path

VIEW = Path(__file__).with_name("service_view.txt")
