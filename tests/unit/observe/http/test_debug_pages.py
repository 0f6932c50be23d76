# SPDX-License-Identifier: Apache-2.0
"""/configz, /flagz and /statusz."""

import json
import platform

from ebpflb import __version__
from ebpflb.config.settings import load_settings, plain_settings
from ebpflb.observe.http.debug_pages import debug_routes

SETTINGS = {"node-name": "node-a", "masquerade-all": False, "host-devices": ["eth0", "eth1"]}


def lines(answer):
    first, title, warning, blank, *rest = answer.body.decode().split("\n")
    assert (first, blank, rest.pop()) == ("", "", "")
    assert warning.startswith("Warning: This endpoint is not meant to be machine parseable")
    assert answer.content_type.startswith("text/plain")
    return [title, *rest]


def test_configz_has_the_settings_in_force():
    answer = debug_routes(SETTINGS, ())["/configz"]()
    assert json.loads(answer.body) == {"ebpflb": SETTINGS}
    assert answer.content_type == "application/json"


def test_all_settings_fit_into_configz(tmp_path):
    given = {"manifests": str(tmp_path), "cgroup-root": "/cg", "sync-period": "90s"}
    pages = debug_routes(plain_settings(load_settings(given, {})), ())
    found = json.loads(pages["/configz"]().body)["ebpflb"]
    assert found["manifests"] == str(tmp_path)
    assert found["sync-period"] == "90s"
    assert "sync-period=90s" in lines(pages["/flagz"]())


def test_flagz_has_them_as_flags():
    assert lines(debug_routes(SETTINGS, ())["/flagz"]()) == [
        "ebpflb flagz",
        "node-name=node-a",
        "masquerade-all=false",
        "host-devices=eth0,eth1",
    ]


def test_statusz_says_how_old_the_agent_is_and_what_else_there_is():
    times = iter([1795255200.5, 1795255200.5 + 7384])
    routes = debug_routes({}, ["/metrics", "/healthz"], wall=lambda: next(times))
    assert lines(routes["/statusz"]()) == [
        "ebpflb statusz",
        "Started: Sat Nov 21 10:00:00 UTC 2026",
        "Up: 2 hr 03 min 04 sec",
        f"Python version: {platform.python_version()}",
        f"Binary version: {__version__}",
        "Paths: /configz /flagz /healthz /metrics /statusz",
    ]
