# SPDX-License-Identifier: Apache-2.0
from errno import EBADF
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import libc


def test_a_failed_call_names_errno_and_path():
    with pytest.raises(FileNotFoundError, match="No such file or directory: '/nowhere'"):
        libc.filesystem_type(Path("/nowhere"))


def test_a_failed_call_without_a_path_names_the_errno():
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        libc.enter_network_namespace(-1)
    assert caught.value.errno == EBADF


def test_proc_is_told_by_its_number():
    assert libc.filesystem_type(Path("/proc")) == 0x9FA0
