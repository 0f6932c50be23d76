# SPDX-License-Identifier: Apache-2.0
"""`python -m tests.cni`: writes docs/compatibility.md from the recorded results."""

from pathlib import Path

from tests.cni.document import render

Path("docs/compatibility.md").write_text(render())
