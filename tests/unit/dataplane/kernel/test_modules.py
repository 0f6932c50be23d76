# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

import pytest

from ebpflb.dataplane.kernel import modules

SYMBOLS = "ffffffff81f6fb80 t xfrm_get_spdinfo\n0 t nf_tables_getchain\t[nf_tables]\n"


@pytest.fixture
def written(monkeypatch, tmp_path):
    """What the two files say; None: there is no such file."""

    def write(loaded: str | None, symbols: str | None) -> None:
        for name, content in (("_MODULES", loaded), ("_SYMBOLS", symbols)):
            path = tmp_path / name
            monkeypatch.setattr(modules, name, path)
            if content is not None:
                Path(path).write_text(content)
        modules.is_built_in.cache_clear()

    yield write
    modules.is_built_in.cache_clear()


@pytest.mark.parametrize(
    ("loaded", "symbols", "module", "function", "found"),
    [
        ("nf_tables 1 2 - Live 0x0\n", SYMBOLS, "nf_tables", "nf_tables_getchain", True),
        ("nf_tables_x 1 2 - Live 0x0\n", SYMBOLS, "nf_tables", "nf_tables_getchain", False),
        ("", SYMBOLS, "xfrm_user", "xfrm_get_spdinfo", True),
        ("", SYMBOLS, "xfrm_user", "get_spdinfo", False),
        ("", None, "xfrm_user", "xfrm_get_spdinfo", True),
        (None, "", "xfrm_user", "xfrm_get_spdinfo", True),
    ],
)
def test_what_is_loaded_or_built_in(written, loaded, symbols, module, function, found):
    written(loaded, symbols)
    assert modules.has_loaded(module, function) is found


def test_a_symbol_that_two_reads_share_is_found(written):
    written("", "x" * (modules._CHUNK - 9) + "\n0 t xfrm_get_spdinfo\n")
    assert modules.has_loaded("xfrm_user", "xfrm_get_spdinfo")
