# SPDX-License-Identifier: Apache-2.0
import pytest

from ebpflb.dataplane.kube_proxy.tools import running_kube_proxies


@pytest.fixture
def add(tmp_path):
    """Add a process to a /proc of the test's own."""

    def add(name: str, comm: str, exe: str | None, namespace: str | None = "net:[1]") -> None:
        process = tmp_path / name
        (process / "ns").mkdir(parents=True)
        (process / "comm").write_text(f"{comm}\n")
        if exe:
            (process / "exe").symlink_to(exe)
        if namespace:
            (process / "ns/net").symlink_to(namespace)

    add("thread-self", "python", "/usr/bin/python3")
    return add


@pytest.mark.parametrize(
    ("comm", "exe", "namespace", "found"),
    [
        ("kube-proxy", "/usr/local/bin/kube-proxy", "net:[1]", True),
        ("kube-proxy", None, "net:[1]", True),
        ("hyperkube", "/opt/kube-proxy", "net:[1]", True),
        ("x", "/opt/kube-proxy (deleted)", "net:[1]", True),
        ("kube-proxy", "/usr/local/bin/kube-proxy", "net:[2]", False),
        ("kube-proxy", None, None, False),
        ("kube-proxy-exp", "/bin/kube-proxy-exporter", "net:[1]", False),
        ("sh", "/opt/kube-proxy/sh", "net:[1]", False),
    ],
)
def test_a_process_is_kube_proxy_by_its_name_and_its_network_namespace(
    add, tmp_path, comm, exe, namespace, found
):
    add("77", comm, exe, namespace)
    assert running_kube_proxies(tmp_path) == ([77] if found else [])


def test_all_of_them_are_named_in_order(add, tmp_path):
    for name in ("200", "30"):
        add(name, "kube-proxy", None)
    (tmp_path / "uptime").write_text("1")
    (tmp_path / "31").mkdir()
    assert running_kube_proxies(tmp_path) == [30, 200]
