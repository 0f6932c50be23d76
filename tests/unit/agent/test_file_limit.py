# SPDX-License-Identifier: Apache-2.0
import resource

import pytest

from ebpflb.agent.file_limit import ENOUGH, raise_file_limit

NO_LIMIT = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param((1024, 524288), (ENOUGH, 524288), id="systemd's"),
        pytest.param((1024, 4096), (4096, 4096), id="no more is allowed"),
        pytest.param((1024, NO_LIMIT), (ENOUGH, NO_LIMIT), id="anything is allowed"),
        pytest.param((1048576, 1048576), None, id="there is more already"),
        pytest.param((NO_LIMIT, NO_LIMIT), None, id="there is no limit"),
    ],
)
def test_the_soft_limit_is_raised_as_far_as_needed(monkeypatch, before, after):
    changed = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: before)
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: changed.append(limits))
    raise_file_limit()
    assert changed == ([after] if after else [])
