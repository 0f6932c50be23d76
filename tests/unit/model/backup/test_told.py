# SPDX-License-Identifier: Apache-2.0
"""What `explain` says of a backup, and of the endpoints that it lends."""

from typing import Any

from ebpflb.model.backup.told import why_used
from ebpflb.model.changes import Changes
from ebpflb.model.explain import Wanted, wanted
from ebpflb.model.service import Service
from ebpflb.words.backup import BackupUse
from tests.builders import (
    NODE,
    address,
    endpoint,
    endpoint_slice,
    node,
    service,
    service_port,
    terminating,
)

STATIC = service("static", service_port("10.96.0.20"))
BACKED = service("web", backup="static")
LIMITED = service("web", backup="static", spill_at=10)
OWN = endpoint("10.1.0.1")


def lent(*endpoints: Any) -> Any:
    return endpoint_slice("static-1", *endpoints, service="static")


def asked(*objects: Any, spills: bool = False) -> Wanted:
    changes = Changes(NODE)
    for each in (node(), *objects):
        changes.set(each)
    if spills:
        changes.backups.observe(dict.fromkeys(changes.backups.limits(), 10), 0)
    changes.take()
    served = changes.service(service().name)
    assert served
    (frontend,) = changes.plan(served.name)
    return wanted(changes, [frontend.key], served.name, address("10.1.9.9"), is_outside=False)


def whys(found: Wanted) -> dict[str, tuple[bool, bool, str]]:
    return {
        each["address"]: (each["ready"], each["candidate"], each["why"]) for each in found.endpoints
    }


def test_a_service_without_a_backup_has_nothing_to_tell():
    assert asked(service(), endpoint_slice("web-1", OWN)).backup == ""


def test_a_backup_that_is_not_in_use():
    found = asked(BACKED, STATIC, endpoint_slice("web-1", OWN), lent(endpoint("10.2.0.1")))
    assert found.backup == "default/static, once no endpoint of its own is usable"
    assert whys(found) == {
        "10.1.0.1": (True, True, "ready"),
        "10.2.0.1": (True, False, "of the backup, which is not in use"),
    }


def test_a_backup_that_is_in_use():
    found = asked(BACKED, STATIC, lent(endpoint("10.2.0.1"), endpoint("10.2.0.2", ready=False)))
    assert found.backup == (
        "no endpoint of its own is usable: new connections go to its backup default/static"
    )
    assert whys(found) == {
        "10.2.0.1": (True, True, "ready; of the backup"),
        "10.2.0.2": (False, False, "not ready; of the backup"),
    }
    assert found.verdict == "translated"


def test_a_backup_without_endpoints():
    found = asked(BACKED, STATIC, lent(endpoint("10.2.0.1", ready=False)))
    assert found.backup == "default/static, which has no usable endpoint either"
    assert found.verdict == "refused"


def test_one_that_may_spill_over():
    pieces = endpoint_slice("web-1", OWN), lent(endpoint("10.2.0.1"))
    assert asked(LIMITED, STATIC, *pieces).backup == (
        "default/static, once no endpoint of its own is usable, or there are 10 open connections "
        "on this node"
    )
    found = asked(LIMITED, STATIC, *pieces, spills=True)
    assert found.backup == (
        "10 or more connections are open: new ones also go to its backup default/static"
    )
    assert whys(found)["10.2.0.1"] == (True, True, "ready; of the backup")


def test_the_last_resort_of_the_backup():
    found = asked(BACKED, STATIC, lent(terminating("10.2.0.1")))
    assert whys(found)["10.2.0.1"][2] == (
        "terminating but still serving, and none is ready; of the backup"
    )


def test_a_backup_that_has_no_effect_is_told_with_the_reason():
    assert asked(BACKED, endpoint_slice("web-1", OWN)).backup.startswith(
        "the annotation ebpflb.io/backup has no effect: there is no Service default/static"
    )


def test_no_use_is_no_sentence():
    found: Service = BACKED
    assert why_used(found, BackupUse.NONE) == ""
