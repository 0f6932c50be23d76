# SPDX-License-Identifier: Apache-2.0
import json
import logging

import pytest

from ebpflb.log import fields, set_up

pytestmark = pytest.mark.usefixtures("logging_as_before")

LOG = logging.getLogger("ebpflb.part")


def written(capsys):
    return capsys.readouterr().err


def test_text_is_key_value_with_quotes_where_needed(capsys):
    set_up("text", 0)
    LOG.info("in sync", extra=fields(services=3, name='a"b', empty="", line="a\nb"))
    time, rest = written(capsys).split(" ", 1)
    assert time.startswith("time=20")
    assert time.endswith("Z")
    assert rest == (
        'level=info part=part msg="in sync" services=3 name="a\\"b" empty="" line="a\\nb"\n'
    )


def test_json_is_one_object_per_line(capsys):
    set_up("json", 0)
    LOG.warning("no %s", "way", extra=fields(count=1, path=object))
    line = json.loads(written(capsys))
    assert line.pop("time").endswith("Z")
    assert line == {
        "level": "warning",
        "part": "part",
        "msg": "no way",
        "count": 1,
        "path": "<class 'object'>",
    }


def test_debug_lines_come_with_verbosity(capsys):
    set_up("text", 0)
    LOG.debug("quiet")
    assert not written(capsys)
    set_up("text", 1)
    LOG.debug("loud")
    assert "level=debug" in written(capsys)


@pytest.mark.parametrize(("verbosity", "traced"), [(0, False), (1, True)])
def test_an_exception_is_its_text_and_with_verbosity_its_traceback(capsys, verbosity, traced):
    set_up("text", verbosity)
    try:
        int("x")
    except ValueError:
        LOG.exception("failed")
    line = written(capsys)
    assert 'error="invalid literal for int()' in line
    assert ("traceback=" in line) is traced
    assert line.count("\n") == 1


def test_a_reader_that_is_gone_does_no_harm(monkeypatch, capsys):
    set_up("text", 0)

    class Gone:
        def write(self, _):
            raise BrokenPipeError

    monkeypatch.setattr(logging.getLogger().handlers[0], "stream", Gone())
    LOG.info("said to nobody")
    assert not written(capsys)
