# SPDX-License-Identifier: Apache-2.0
"""Pod cgroups are found by their names, at any depth, but not inside another pod's."""

from pathlib import Path

import pytest

from ebpflb.dataplane.attach.pod_cgroups import PodCgroups

UID = "5a0c1b2d-0001-4002-8003-00000000000a"
OTHER = "5a0c1b2d-0001-4002-8003-00000000000b"
SYSTEMD = UID.replace("-", "_")
PLACES = {
    "cgroupfs": f"kubepods/burstable/pod{UID}",
    "cgroupfs, guaranteed": f"kubepods/pod{UID}",
    "systemd": f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SYSTEMD}.slice",
    "systemd, guaranteed": f"kubepods.slice/kubepods-pod{SYSTEMD}.slice",
    "kind": f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SYSTEMD}.slice",
    "cgroupfs below another": f"system.slice/docker-1.scope/kubelet/kubepods/pod{UID}",
}


def made(root: Path, place: str) -> int:
    path = root / place
    path.mkdir(parents=True)
    return path.stat().st_ino


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_pod_is_found_by_its_uid(tmp_path, place):
    expected = made(tmp_path, place)
    made(tmp_path, f"{place}/cri-containerd-{OTHER}.scope")
    assert PodCgroups(tmp_path).ids({UID, OTHER}) == {expected}


def test_what_is_below_a_pod_is_none(tmp_path):
    made(tmp_path, f"kubepods/pod{OTHER}/container/kubelet/kubepods/pod{UID}")
    assert PodCgroups(tmp_path).ids({UID}) == set()


@pytest.mark.parametrize("name", [UID, f"pod{UID[:-1]}", f"pod{UID}.scope", f"podium-{UID}"])
def test_other_names_are_none(tmp_path, name):
    made(tmp_path, name)
    assert PodCgroups(tmp_path).ids({UID}) == set()


def test_a_cgroup_that_is_gone_is_none(tmp_path):
    made(tmp_path, PLACES["cgroupfs"])
    cgroups = PodCgroups(tmp_path)
    assert cgroups.ids({UID})
    (tmp_path / PLACES["cgroupfs"]).rmdir()
    assert cgroups.ids({UID}) == set()


def test_there_is_a_search_for_each_new_pod_and_once_a_minute_for_the_others(tmp_path):
    now = [1000.0]
    cgroups = PodCgroups(tmp_path, clock=lambda: now[0])
    assert cgroups.ids({UID}) == set()
    found = made(tmp_path, PLACES["cgroupfs"])
    now[0] += 59
    assert cgroups.ids({UID}) == set()
    now[0] += 1
    assert cgroups.ids({UID}) == {found}
    second = made(tmp_path, f"kubepods/pod{OTHER}")
    assert cgroups.ids({UID, OTHER}) == {found, second}
    assert cgroups.ids({OTHER}) == {second}
    assert PodCgroups(tmp_path / "nowhere").ids({UID}) == set()
