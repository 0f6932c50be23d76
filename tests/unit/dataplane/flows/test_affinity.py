# SPDX-License-Identifier: Apache-2.0
"""Which entries of session affinity are deleted, over maps in memory."""

from ebpflb.dataplane.flows.affinity import expire_affinity
from ebpflb.dataplane.layout.structs import LbAddr, LbAffinity, LbClientKey, LbDesc, u32
from tests.memory_maps import memory_maps

SECOND = 1_000_000_000
SERVICE, TIMEOUT = 7, 60
ROOM = 16


class Clients:
    """A Service with affinity, and clients by number; `now` in seconds."""

    def __init__(self) -> None:
        self.maps = memory_maps({"lb_affinity": ROOM})
        desc = LbDesc(service=SERVICE, affinity_timeout=TIMEOUT)
        self.maps["lb_descs"].update(bytes(u32(1)), bytes(desc))
        self.maps["lb_descs"].update(bytes(u32(2)), bytes(LbDesc(service=SERVICE)))
        self.now = 1000

    def come(self, *numbers: int, ago: float = 0, service: int = SERVICE) -> None:
        used = int((self.now - ago) * SECOND)
        for number in numbers:
            client = LbAddr.from_buffer_copy(number.to_bytes(16, "big"))
            key = LbClientKey(service=service, client=client)
            self.maps["lb_affinity"].update(bytes(key), bytes(LbAffinity(last_used=used)))

    def expire(self) -> int:
        return expire_affinity(self.maps, lambda: self.now * SECOND)

    @property
    def left(self) -> set[int]:
        return {key[-1] for key, _ in self.maps["lb_affinity"].items()}


def test_a_client_is_forgotten_when_the_timeout_of_its_service_has_passed():
    clients = Clients()
    clients.come(1, ago=TIMEOUT + 1)
    clients.come(2, ago=TIMEOUT - 1)
    assert clients.expire() == 1
    assert clients.left == {2}


def test_affinity_to_a_service_that_has_none_any_more_is_forgotten():
    clients = Clients()
    clients.come(1, ago=1, service=SERVICE + 1)
    assert clients.expire() == 1


def test_a_client_that_comes_again_meanwhile_stays():
    clients = Clients()
    clients.come(1, ago=TIMEOUT + 1)
    table = clients.maps["lb_affinity"]
    chunks = table.chunks

    def renewing(limit: int = 0):
        for chunk in chunks(limit):
            clients.come(1)
            yield chunk

    table.chunks = renewing  # type: ignore[method-assign]
    assert clients.expire() == 0
    assert clients.left == {1}


def test_strangers_that_fill_the_table_do_not_keep_new_clients_out():
    clients = Clients()
    few = range(ROOM * 3 // 4)
    for number in few:
        clients.come(number, ago=50 - number)
    assert clients.expire() == 0
    clients.come(100)
    assert clients.expire() == len(few) + 1 - ROOM // 2
    assert clients.left == {100, *few[-(ROOM // 2 - 1) :]}
