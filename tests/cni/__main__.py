# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cni`: write docs/compatibility.md from what was recorded."""

from pathlib import Path

from tests.cni.document import render

Path("docs/compatibility.md").write_text(render())
