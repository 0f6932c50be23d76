# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from ebpflb.dataplane.attach.attachments import HookProgram, order_of
from ebpflb.dataplane.attach.links import CGROUP_HOOKS
from ebpflb.dataplane.doctor.hooks import judge_sockets

OURS = HookProgram("lb_connect4", True)
CILIUM, UNKNOWN = HookProgram("cil_sock4_conne", False), HookProgram("guard", False)


def found(**others):
    """With only ebpflb's program at every hook except those named."""
    every = {name: [OURS] for name in CGROUP_HOOKS} | others
    orders = {name: order_of(programs) for name, programs in every.items()}
    return [(str(each.severity), each.what) for each in judge_sockets(Path("/c"), orders)]


def test_ours_alone_is_well():
    assert found() == [("ok", f"all {len(CGROUP_HOOKS)} hooks are at cgroup /c")]


def test_a_hook_without_ours_is_an_error():
    (error, note) = found(lb_connect4=[], lb_connect6=[UNKNOWN])
    assert error == ("error", "hooks without our program: connect4, connect6")
    assert note == ("note", "guard runs before ours at connect6")


def test_programs_of_others_are_reported_with_their_hooks_and_side():
    assert found(lb_connect4=[UNKNOWN, OURS, CILIUM]) == [
        ("note", "guard runs before ours at connect4"),
        ("warning", "cil_sock4_conne of Cilium runs after ours at connect4"),
    ]


def test_the_order_is_seen_from_ours():
    order = order_of([UNKNOWN, OURS, CILIUM, OURS])
    assert order == (True, [UNKNOWN], [CILIUM])
    assert order_of([CILIUM]) == (False, [CILIUM], [])
    assert HookProgram("", False).title == "a program without a name"
