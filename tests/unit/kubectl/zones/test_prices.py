# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.kubectl.zones.prices import prices

WAY = frozenset(("zone-a", "zone-b"))


def of(tmp_path, text):
    path = tmp_path / "prices"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return prices(str(path))


@pytest.mark.parametrize("number", ["0", "0.01", "1e-2", "1000000"])
def test_a_number_is_the_price_between_all_zones(number):
    assert prices(number)(WAY) == float(number)


def test_a_file_has_prices_for_both_ways_of_pairs(tmp_path):
    found = of(tmp_path, "# per GB\n\nzone-b  zone-a\t0.02 # one region\r\nzone-c zone-a 0\n")
    assert found(WAY) == 0.02
    assert found(frozenset(("zone-a", "zone-c"))) == 0
    assert found(frozenset(("zone-b", "zone-c"))) is None


@pytest.mark.parametrize(
    ("number", "why"),
    [
        ("-0.01", "-0.01 is no price: want from 0 to 1,000,000"),
        ("nan", "nan is no price"),
        ("inf", "inf is no price"),
        ("1000001", "is no price"),
        ("", ": neither a number nor a file: No such file or directory"),
        ("0,01", "0,01: neither a number nor a file: No such file or directory"),
        ("/", "/: neither a number nor a file: Is a directory"),
        ("a\0b", "not a file of text"),
    ],
)
def test_what_is_neither_a_price_nor_a_file_is_named(number, why):
    with pytest.raises(ValueError, match=why):
        prices(number)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("zone-a zone-b 1\nzone-a zone-b\n", ":2: want two zones and a price, as in: zone-a "),
        ("zone-a zone-b 1 2", ":1: want two zones and a price"),
        ("zone-a zone-a 1", ":1: want two zones and a price"),
        ("zone-a zone-b cheap", ":1: cheap is not a number"),
        ("zone-a zone-b -1", ":1: -1 is no price"),
        ("zone-a zone-b nan", ":1: nan is no price"),
        ("zone-a zone-b 1\nzone-b zone-a 1", ":2: a second price for zone-a and zone-b"),
        (b"\xff\xfe", "not a file of text"),
        ("#" * (1 << 20) + "#", "longer than 1 MiB"),
    ],
)
def test_a_line_that_is_no_price_is_named(tmp_path, text, why):
    with pytest.raises(ValueError, match=why):
        of(tmp_path, text)
