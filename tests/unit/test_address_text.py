# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.config.values import is_ip, socket_address


def test_addresses_of_sockets():
    assert socket_address("10.0.0.1", 80) == "10.0.0.1:80"
    assert socket_address("fd00::1", 80) == "[fd00::1]:80"


@pytest.mark.parametrize(
    ("text", "is_one"), [("10.0.0.1", True), ("fd00::1", True), ("web", False), ("[::1]", False)]
)
def test_what_is_an_address(text, is_one):
    assert is_ip(text) == is_one
