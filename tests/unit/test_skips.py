# SPDX-License-Identifier: Apache-2.0
"""A skipped test fails the session, unless the kernel lacks a feature."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITE = {
    "conftest.py": "from tests.conftest import *\n",
    "test_module.py": "import pytest\npytest.importorskip('no_such_module')\n",
    "test_functions.py": """
import pytest
from tests.skips import kernel_lacks

def test_lacks():
    kernel_lacks("tcx", "EINVAL")

def test_body():
    pytest.skip("later")

@pytest.mark.skipif(True, reason="later")
def test_mark():
    pass

@pytest.mark.xfail(reason="a known bug")
def test_bug():
    assert False
""",
}


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    """What pytest prints at the end of a suite of skips, under this project's settings."""
    suite = tmp_path_factory.mktemp("suite")
    for name, text in SUITE.items():
        (suite / name).write_text(text)
    settings = ["-c", f"{ROOT}/pyproject.toml", "--rootdir", suite, "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "--continue-on-collection-errors", *settings, suite]
    run = subprocess.run(
        [str(word) for word in command],
        cwd=ROOT,
        # Wide enough for a line with the path of the suite.
        env={**os.environ, "COLUMNS": "400"},
        capture_output=True,
        text=True,
        check=False,
    )
    return run.stdout.partition("short test summary info")[2]


def test_a_feature_that_the_kernel_lacks_is_a_skip_with_its_reason(summary):
    assert re.search("^SKIPPED .*kernel lacks tcx: EINVAL$", summary, re.MULTILINE)


@pytest.mark.parametrize("place", ["test_module.py", "::test_body", "::test_mark"])
def test_any_other_skip_is_a_failure(summary, place):
    assert re.search(f"^(FAILED|ERROR) .*{place}( - skipped|$)", summary, re.MULTILINE)


def test_an_expected_failure_is_no_skip(summary):
    assert re.search("^=+ 1 failed, 1 skipped, 1 xfailed, 2 errors in", summary, re.MULTILINE)
