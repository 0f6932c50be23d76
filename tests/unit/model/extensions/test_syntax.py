# SPDX-License-Identifier: Apache-2.0
"""How the annotations of Services are read and written."""

import pytest

from ebpflb.model.extensions.annotated import NOTHING, Annotated
from ebpflb.model.extensions.lifetime import EndingRules, MaxAge, OnEndpointGone, Rebalance
from ebpflb.model.extensions.limits import OpenLimit, RateLimit
from ebpflb.model.extensions.syntax import OF_SERVICES, text_of
from ebpflb.model.extensions.weights import Share, Weights

SHARES = Weights((Share("version", "v2", 10), Share("version", "v1", 90)))
READ = [
    ("weights", "version=v2:10, version=v1:90", SHARES, "version=v2:10,version=v1:90"),
    ("weights", "pods", Weights(), "pods"),
    ("rebalance", "idle 30s, 5/min", Rebalance(30, 5), "idle 30s, 5/min"),
    ("rebalance", "7/min,idle 1m,dry-run", Rebalance(60, 7, True), "idle 60s, 7/min, dry-run"),
    ("max-connection-age", "30m±10%", MaxAge(1800, 10), "1800s±10%"),
    ("max-connection-age", "30m+-10%", MaxAge(1800, 10), "1800s±10%"),
    ("max-connection-age", "1h", MaxAge(3600), "3600s"),
    ("on-endpoint-gone", "reset", OnEndpointGone.RESET, "reset"),
    ("backup", "shop/sorry", "shop/sorry", "shop/sorry"),
    ("backup-for", "shop, dev", ("shop", "dev"), "shop,dev"),
    ("spill-at", "500", 500, "500"),
    ("retry", "true", True, "true"),
    ("max-connections", "100", OpenLimit(100), "100"),
    ("max-connections", " 100 ,drop", OpenLimit(100, drops=True), "100, drop"),
    ("max-connections-per-client", "20", OpenLimit(20), "20"),
    ("new-connections-per-client", "10/s", RateLimit(10, 1, 10), "10/s, burst 10"),
    ("new-connections-per-client", "30/min", RateLimit(30, 60, 1), "30/min, burst 1"),
    ("new-connections-per-client", "120/min", RateLimit(2, 1, 2), "2/s, burst 2"),
    ("new-connections-per-client", "10/s,burst 50", RateLimit(10, 1, 50), "10/s, burst 50"),
    (
        "new-connections-per-client",
        "10/s, drop, burst 50",
        RateLimit(10, 1, 50, drops=True),
        "10/s, burst 50, drop",
    ),
]


@pytest.mark.parametrize(("name", "text", "value", "written"), READ)
def test_a_value_is_read_and_written(name: str, text: str, value: object, written: str):
    syntax = OF_SERVICES[f"ebpflb.io/{name}"]
    assert syntax.parse(text) == value
    assert syntax.text(value) == written
    assert syntax.parse(written) == value


FORM = "must be idle DURATION, NUMBER/min, as in idle 30s, 5/min, and perhaps dry-run"
WEIGHTS = "must be pods, or LABEL=VALUE:WEIGHT, separated by commas"
OPEN = "must be a number, as in 100, or with drop, as in 100, drop"
NEW = (
    "must be NUMBER/s or NUMBER/min, and perhaps burst NUMBER and drop, as in 10/s, burst 50, drop"
)
WRONG = [
    ("scheduler", "wlc", "must be one of random, "),
    ("retry", "yes", "must be one of true, false"),
    ("weights", "v2:10", WEIGHTS),
    ("weights", "=v2:10", WEIGHTS),
    ("weights", "version=v2:-1", "want a number from 0 to 1000000"),
    ("weights", "version=v2:10,", WEIGHTS),
    ("rebalance", "on", FORM),
    ("rebalance", "5/min", FORM),
    ("rebalance", "idle 30s", FORM),
    ("rebalance", "idle 0s, 5/min", "want a duration greater than 0"),
    ("rebalance", "idle 30s, 0/min", "want a number from 1 to 60000"),
    ("max-connection-age", "-1s", "want a duration from 0"),
    ("max-connection-age", "30m±10", "must be a duration, as in 30m, or with a spread"),
    ("max-connection-age", "30m±101%", "want a number from 0 to 100"),
    ("on-endpoint-gone", "rst", "must be one of keep, reset"),
    ("backup", "a/b/c", "must be the NAME of another Service, or NAMESPACE/NAME"),
    ("backup-for", "Shop", "must be names of namespaces, separated by commas, or *"),
    ("spill-at", "0", "want a number from 1 to 1000000000"),
    *(("max-connections", text, OPEN) for text in ("100, refuse", "100, drop, drop", "100,", ",")),
    *(
        ("max-connections", text, "want a number from 1 to 1000000000")
        for text in ("0", "-1", "1k", "10/s", "drop", "0x10", "1.5", "1000000001", ", drop")
    ),
    ("max-connections-per-client", "0", "want a number from 1 to 1000000000"),
    *(
        ("new-connections-per-client", text, NEW)
        for text in (
            *("10", "10/h", "burst 50", "burst 50, 10/s", "10/s, 20/s", "10/s, fast", "10/s,"),
            *("10/s, drop, drop", "10/s, burst 5, burst 6", "10/s, burst"),
        )
    ),
    *(
        ("new-connections-per-client", text, "want a number from 1 to 10000")
        for text in ("0/s", "-1/s", "/s", "10001/s", "10001/min", "0.5/s")
    ),
    ("new-connections-per-client", "10/s, burst 0", "want a number from 1 to 1000000"),
    ("new-connections-per-client", "10/s, burst many", "want a number from 1 to 1000000"),
    ("vip-unserved", "refuse", "must be one of "),
    ("no-local-endpoint", "reject", "must be one of "),
]


@pytest.mark.parametrize(("name", "text", "problem"), WRONG)
def test_a_wrong_value_is_told_with_what_is_wanted(name: str, text: str, problem: str):
    with pytest.raises(ValueError, match=r"\A(must be|want)") as caught:
        OF_SERVICES[f"ebpflb.io/{name}"].parse(text)
    assert str(caught.value).startswith(problem)


def test_what_is_not_asked_for_is_not_written():
    assert text_of(NOTHING) == {}
    assert text_of(Annotated(dsr=False, ejection=0)) == {
        "ebpflb.io/dsr": "false",
        "ebpflb.io/ejection": "0",
    }


def test_open_connections_are_ended_if_any_annotation_asks_for_it():
    assert NOTHING.ending is None
    wish = Annotated(max_age=MaxAge(60))
    assert wish.ending == EndingRules(None, MaxAge(60))
    assert wish.ending.idle == 1
    assert Annotated(on_endpoint_gone=OnEndpointGone.RESET).ending is not None
