# SPDX-License-Identifier: Apache-2.0
"""What is recorded, and when: objects that are in force, and no others."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ebpflb.config.moment import rfc3339_ns
from ebpflb.errors import QueryError
from ebpflb.model.address import SocketAddress
from ebpflb.model.changes import Changes
from ebpflb.model.ejection import EjectionChange
from ebpflb.model.objects.kinds import ApiObject, ObjectKey, key_of
from ebpflb.model.pod import Pod
from ebpflb.observe.served import recorder as recording
from ebpflb.observe.served.kept_changes import KeptChanges
from ebpflb.observe.served.recorder import RETRY_SECONDS, ServedRecorder
from ebpflb.observe.served.records import line_of_loss
from ebpflb.source.decode import decode
from ebpflb.source.interface import SourceEvent
from tests.builders import NODE, address, endpoint_slice, node, port_name, service

SECOND = 1_000_000_000
START = 1_700_000_000 * SECOND
EJECTED = EjectionChange(port_name(), SocketAddress(address("10.1.0.1"), 8080), 10.0, 3, 1)


class Disk(KeptChanges):
    """Fails when it is told to."""

    fails = False

    def begin(
        self, lines: Callable[[str], Iterable[bytes]], pause: Callable[[], None], moment: int
    ) -> None:
        self._check()
        super().begin(lines, pause, moment)

    def add(self, lines: Sequence[bytes]) -> None:
        self._check()
        super().add(lines)

    def _check(self) -> None:
        if self.fails:
            self._current = None
            raise OSError(28, "No space left on device")


class Recording:
    """An agent's model and recorder, and a clock."""

    def __init__(self, directory: Path) -> None:
        self.now = START
        self.changes = Changes(NODE)
        self.disk = Disk(directory / "a" / "b" / "served", 1 << 20, lambda: self.now)
        self.recorder = ServedRecorder(self.changes, self.disk, lambda: self.now)

    def say(self, *upserts: ApiObject, gone: tuple[ObjectKey, ...] = ()) -> None:
        for key in gone:
            self.changes.remove(key)
        for item in upserts:
            self.changes.set(item)
        self.recorder.note(SourceEvent(upserts, gone, {}, initial=False))

    def serve(self, *upserts: ApiObject, gone: tuple[ObjectKey, ...] = ()) -> int:
        """From the next second on; returns that."""
        self.say(*upserts, gone=gone)
        self.now += SECOND
        self.recorder.in_force()
        return self.now

    def served(self, moment: int) -> set[object]:
        """The names of objects; of what is ejected, the place."""
        found: set[object] = set()
        for each in self.disk.records(moment, lambda _: True):
            if each.removed:
                found.discard(each.removed[2])
            elif change := each.ejection:
                (found.add if change.seconds else found.discard)(change.place)
            elif document := bytes(each.object):
                found.add(_named(document))
        return found


def _named(document: bytes) -> str:
    item = decode(document)
    assert item is not None
    return key_of(item).name


@pytest.fixture
def world(tmp_path: Path) -> Recording:
    return Recording(tmp_path)


def test_at_first_all_that_is_in_force_is_recorded(world):
    world.say(service("web"), endpoint_slice("web-1"), node())
    world.recorder.write()
    with pytest.raises(QueryError):
        world.served(START)
    now = world.serve()
    world.now += SECOND
    world.recorder.write()
    assert world.served(now) == {"web", "web-1", NODE}


def test_changes_count_from_when_they_are_in_force(world):
    first = world.serve(service("web"))
    world.recorder.write()
    world.say(service("api"))
    world.recorder.write()
    second = world.serve(gone=(key_of(service("web")),))
    world.recorder.write()
    assert world.served(second - 1) == {"web"}
    assert world.served(second) == {"api"}
    assert first < second


def test_pods_and_other_nodes_are_not_recorded(world):
    pod = Pod("default", "curl", (address("10.1.0.9"),))
    now = world.serve(service("web"), pod, node(), node("node-b"))
    world.recorder.write()
    later = world.serve(pod, node("node-b"), service("api"))
    world.recorder.write()
    world.serve(gone=(key_of(pod), key_of(node("node-b"))))
    world.recorder.write()
    assert world.served(now) == {"web", NODE}
    assert world.served(later) == {"web", NODE, "api"}
    assert not [each for each in world.disk.records(world.now, lambda _: True) if each.removed]


def test_what_is_ejected_is_recorded_until_it_is_back(world):
    start = world.serve(service("web"))
    world.recorder.write()
    world.recorder.ejected(EJECTED)
    out = world.serve()
    world.recorder.write()
    # All that is in force is written again.
    world.now += 9 * 3600 * SECOND
    world.recorder.write()
    again = world.now
    world.recorder.ejected(EJECTED._replace(seconds=0))
    back = world.serve()
    world.recorder.write()
    web = {"web"}
    assert [world.served(each) for each in (start, back)] == [web, web]
    assert [world.served(each) for each in (out, again)] == [{*web, EJECTED.place}] * 2


def test_of_what_the_disk_did_not_take_it_is_told_that_it_is_missing(world, caplog):
    caplog.set_level("INFO")
    world.serve(service("web"))
    world.recorder.write()
    world.disk.fails = True
    lost = world.serve(service("api"))
    world.recorder.write()
    world.serve(service("cart"))
    world.recorder.write()
    assert [each.levelname for each in caplog.records] == ["ERROR"]
    assert "No space left on device" in caplog.text
    world.disk.fails = False
    world.now += RETRY_SECONDS * SECOND
    again = world.now
    world.recorder.write()
    assert [each.levelname for each in caplog.records] == ["ERROR", "INFO"]
    assert world.served(lost - 1) == {"web"}
    for moment in (lost, again - 1):
        with pytest.raises(QueryError, match="could not be kept"):
            world.served(moment)
    assert world.served(again) == {"web", "api", "cart"}
    after = world.serve(service("shop"))
    world.recorder.write()
    assert world.served(after) == {"web", "api", "cart", "shop"}


def test_while_a_disk_fails_it_is_tried_now_and_then(world):
    world.disk.fails = True
    world.serve(service("web"))
    world.recorder.write()
    world.disk.fails = False
    world.recorder.write()
    assert world.disk.needs_begin
    world.now += RETRY_SECONDS * SECOND
    world.recorder.write()
    assert world.served(world.now) == {"web"}


def test_changes_that_wait_for_the_disk_are_bounded(world, monkeypatch):
    monkeypatch.setattr(recording, "_MOST_WAITING", 2)
    world.serve(service("web"))
    world.recorder.write()
    moments = [world.serve(service(f"web-{number}")) for number in range(6)]
    world.now += SECOND
    world.recorder.write()
    with pytest.raises(QueryError, match="could not be kept"):
        world.served(moments[3])
    assert len(world.served(world.now)) == 7


def test_what_is_lost_while_the_disk_recovers_is_told_too(world, monkeypatch):
    monkeypatch.setattr(recording, "_MOST_WAITING", 2)
    world.serve(service("web"))
    world.recorder.write()
    world.disk.fails = True
    world.serve(service("api"))
    world.recorder.write()
    world.disk.fails = False
    world.now += RETRY_SECONDS * SECOND
    during: list[int] = []

    def flood(_: object) -> None:
        during.extend(world.serve(service(f"web-{number}")) for number in range(6))

    monkeypatch.setattr(recording, "line_of_loss", _then(line_of_loss, flood))
    world.recorder.write()
    monkeypatch.undo()
    world.now += SECOND
    world.recorder.write()
    with pytest.raises(QueryError, match="could not be kept"):
        world.served(during[-1])
    assert len(world.served(world.now)) == 8


def _then(line: Callable[[str, str], bytes], after: Callable[[object], None]) -> Any:
    def called(time: str, lost_since: str) -> bytes:
        made = line(time, lost_since)
        after(made)
        return made

    return called


def test_nothing_is_recorded_if_nothing_is_to_be_kept():
    changes = Changes(NODE)
    recorder = ServedRecorder(changes, None)
    recorder.in_force()
    recorder.note(SourceEvent((service(),), (), {}, initial=False))
    recorder.ejected(EJECTED)
    recorder.in_force()
    recorder.start()
    recorder.write()
    recorder.stop()


def test_its_thread_writes_what_waits_before_it_ends(world):
    now = world.serve(service("web"))
    world.recorder.start()
    assert "ebpflb-served" in {each.name for each in threading.enumerate()}
    world.recorder.stop()
    assert world.served(now) == {"web"}
    assert rfc3339_ns(now) > rfc3339_ns(START)


def test_what_comes_into_force_during_its_last_write_is_written(world, monkeypatch):
    begin, moments = world.disk.begin, list[int]()
    stopping = threading.Thread(target=world.recorder.stop)

    def begin_and_stop(*given: Any) -> None:
        begin(*given)
        moment = world.serve(service("api"))
        stopping.start()
        # It is told by now, and waits.
        stopping.join(0.1)
        moments.append(moment)

    monkeypatch.setattr(world.disk, "begin", begin_and_stop)
    world.serve(service("web"))
    world.recorder.start()
    while not moments:
        time.sleep(0.01)
    stopping.join()
    assert world.served(moments[0]) == {"web", "api"}


def test_a_disk_that_hangs_does_not_keep_an_agent_from_ending(world, monkeypatch):
    hanging = threading.Event()
    monkeypatch.setattr(recording, "STOP_SECONDS", 0.01)
    monkeypatch.setattr(world.disk, "begin", lambda *_: hanging.wait(20))
    world.serve(service("web"))
    world.recorder.start()
    world.recorder.stop()
    assert "ebpflb-served" in {each.name for each in threading.enumerate()}
    hanging.set()
