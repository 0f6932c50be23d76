# SPDX-License-Identifier: Apache-2.0
"""Writes the page about pairs of annotations: `python -m tests.pairs`."""

from tests.pairs.document import PAGE, render

if __name__ == "__main__":
    PAGE.write_text(render())
