# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.config import values


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("30s", 30),
        ("1m0s", 60),
        ("500ms", 0.5),
        ("2h45m", 9900),
        ("1h0m0.5s", 3600.5),
        (".5s", 0.5),
        ("100us", 1e-4),
        ("100µs", 1e-4),
        ("250ns", 2.5e-7),
        ("+1s", 1),
        ("0", 0),
        ("0s", 0),
        ("15", 15),
        (15, 15),
        (1.5, 1.5),
        (" 30s ", 30),
        ("4294967295s", 2**32 - 1),
    ],
)
def test_durations_are_written_as_in_go_or_as_seconds(given, seconds):
    assert values.duration(given) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "given",
    ["", "s", "30 s", "1d", "-1s", "1s-", "1s1", "1..5s", "s30", "inf", "nan", -1, True, [], 2**32],
)
def test_what_is_no_duration(given):
    with pytest.raises(ValueError, match="want a duration"):
        values.duration(given)


@pytest.mark.parametrize("given", [True, "true", "True", "TRUE", "t", "T", "1"])
def test_what_is_true(given):
    assert values.boolean(given) is True


@pytest.mark.parametrize("given", [False, "false", "False", "FALSE", "f", "F", "0"])
def test_what_is_false(given):
    assert values.boolean(given) is False


@pytest.mark.parametrize("given", ["", "yes", "on", 1, 0, None, []])
def test_what_is_neither(given):
    with pytest.raises(ValueError, match="want true or false"):
        values.boolean(given)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", ()),
        ("primary", ("primary",)),
        (["10.0.0.1/8", "fd00::/8"], ("10.0.0.0/8", "fd00::/8")),
        (("10.0.0.1/8,10.0.0.2/8", "10.0.0.0/8"), ("10.0.0.0/8",)),
        ("all,localhost,all", ("all", "localhost")),
        (["primary", "10.0.0.1/8", "localhost"], ("primary", "10.0.0.0/8", "localhost")),
    ],
)
def test_nodeport_addresses(given, found):
    assert values.nodeport_addresses(given) == found


def test_a_range_of_node_ports_leaves_a_thousand():
    assert values.node_port_range("80-64535") == (80, 64535)
    assert values.node_port_range("2024-65535") == (2024, 65535)
    assert values.node_port_range("1-1023") == (1, 1023)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("Localhost", "'Localhost' (did you mean localhost?)"),
        (["primary", "10.0.0.0/33"], "'10.0.0.0/33'"),
        ("none", "'none'"),
    ],
)
def test_what_is_no_nodeport_address(given, problem):
    with pytest.raises(ValueError, match="want CIDRs or the words") as raised:
        values.nodeport_addresses(given)
    assert str(raised.value) == f"want CIDRs or the words localhost, all, primary, not {problem}"


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("", ""),
        ("0.0.0.0", "0.0.0.0:7"),
        ("::", "[::]:7"),
        ("fd00::1", "[fd00::1]:7"),
        ("10.0.0.1:80", "10.0.0.1:80"),
        ("[::1]:80", "[::1]:80"),
    ],
)
def test_an_address_alone_gets_the_usual_port(given, found):
    assert values.bind_address(7)(given) == found


def test_an_address_that_may_end_with_a_port_needs_brackets():
    with pytest.raises(ValueError, match="stands in brackets"):
        values.bind_address(7)("fd00::1:80")


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("serve", ("serve",)),
        (" not-nodes ", ("not-nodes",)),
        (["ignore"], ("ignore",)),
        ("10.0.0.1/8,fd00::/64", ("10.0.0.0/8", "fd00::/64")),
    ],
)
def test_which_ips_of_services_are_served(given, found):
    assert values.served_ips(given) == found


@pytest.mark.parametrize("given", ["", [], "none", "serve,ignore", "serve,10.0.0.0/8", 7, "10/8x"])
def test_which_ips_of_services_cannot_be_meant(given):
    with pytest.raises(ValueError, match=r"want serve, not-nodes, ignore or CIDRs|want a string"):
        values.served_ips(given)


@pytest.mark.parametrize(
    ("given", "found"),
    [("", ()), ("10250,22", (22, 10250)), ([22, "80,22"], (22, 80)), (22, (22,))],
)
def test_ports(given, found):
    assert values.ports(given) == found


@pytest.mark.parametrize("given", ["0", "65536", "ssh", [True], "22-25"])
def test_what_are_no_ports(given):
    with pytest.raises(ValueError, match="want a number from 1 to 65535"):
        values.ports(given)


@pytest.mark.parametrize("given", ["1.5", "", "0x10", True, None, 1.0, "99999999999"])
def test_what_is_no_number(given):
    with pytest.raises(ValueError, match="want a number from 0 to 9"):
        values.Number(0, 9)(given)


def test_limits_of_a_number_belong_to_it():
    assert (values.Number(-9, 9)("-9"), values.Number(-9, 9)(9)) == (-9, 9)
    with pytest.raises(ValueError, match="from -9 to 9"):
        values.Number(-9, 9)("10")


@pytest.mark.parametrize("given", ["", "https://[fd00::1]:6443", "http://10.0.0.1/path"])
def test_urls(given):
    assert values.url(given) == given


def test_a_host_name_is_lower_cased_as_the_kubelet_does():
    assert values.node_name(" Node-A ") == "node-a"


@pytest.mark.parametrize(
    ("given", "found"), [("off", 0), (False, 0), ("0", 0), ("on", 5), (True, 5), ("7", 7), (7, 7)]
)
def test_ejection(given, found):
    assert values.ejection(given) == found


@pytest.mark.parametrize("given", ["", "yes", "-1", "1001", "1.5", None, ["on"]])
def test_what_is_no_ejection(given):
    with pytest.raises(ValueError, match="want off, on or a number from 0 to 1000"):
        values.ejection(given)
