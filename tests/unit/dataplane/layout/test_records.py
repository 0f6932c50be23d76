# SPDX-License-Identifier: Apache-2.0
from errno import ENAMETOOLONG

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebpflb.dataplane.layout import enums, structs
from ebpflb.dataplane.layout.records import (
    BackendRecord,
    DescRecord,
    SocketRecord,
    backup_use,
    desc_flags,
    pack_name,
    unpack_name,
)
from ebpflb.errors import MapError
from ebpflb.model.address import Address, Protocol
from ebpflb.model.service import ServicePortName
from ebpflb.words.backup import BackupUse
from ebpflb.words.scheduler import Scheduler
from tests.unit.dataplane.desired import frontend

U32 = st.integers(0, (1 << 32) - 1)
U16 = st.integers(0, (1 << 16) - 1)
RANGE = (U32, U32, U16, U16)
SOCKETS = st.builds(
    SocketRecord,
    st.binary(min_size=16, max_size=16).map(Address),
    st.integers(0, 65535),
    st.sampled_from(Protocol),
)
LABELS = st.text("abc-9", max_size=63)


@given(SOCKETS)
def test_a_socket_address_has_the_layout_of_a_frontend_key(socket: SocketRecord):
    key = structs.LbFrontendKey.from_buffer_copy(socket.pack())
    assert (bytes(key.addr), key.port, key.proto, key.pad) == (*socket, 0)
    assert SocketRecord.unpack(socket.pack()) == socket


@given(SOCKETS, st.tuples(U16, U16, U32, U32))
def test_a_backend_has_the_layout_of_c(socket: SocketRecord, rest: tuple[int, int, int, int]):
    record = BackendRecord(socket.pack(), *rest)
    struct = structs.LbBackend.from_buffer_copy(record.pack())
    assert bytes(struct)[:20] == socket.pack()
    assert (struct.flags, struct.weight, struct.serial, struct.service) == rest
    assert BackendRecord.unpack(record.pack()) == record


@given(SOCKETS, st.tuples(U32, *RANGE, *RANGE, U32, U16, st.integers(0, 255), U32, U32))
def test_a_descriptor_has_the_layout_of_c(socket: SocketRecord, rest: tuple[int, ...]):
    record = DescRecord(socket.pack(), *rest)
    struct = structs.LbDesc.from_buffer_copy(record.pack())
    ranges = [
        (place.base, place.count, place.if_empty, place.table)
        for place in (struct.local, struct.others)
    ]
    assert bytes(struct.frontend) == socket.pack()
    assert (struct.service, *ranges[0], *ranges[1]) == rest[:9]
    last = (struct.type, struct.flags, struct.scheduler)
    assert (*last, struct.affinity_timeout, struct.source_ranges) == rest[9:]
    assert DescRecord.unpack(record.pack()) == record
    assert record.address == socket.address


@given(st.builds(ServicePortName, LABELS, LABELS, LABELS, st.sampled_from(Protocol)))
def test_a_name_has_the_layout_of_c(name: ServicePortName):
    struct = structs.LbName.from_buffer_copy(pack_name(name))
    parts = tuple(part.decode() for part in (struct.ns, struct.service, struct.port))
    assert parts == name[:3]
    assert unpack_name(pack_name(name), name.protocol) == name


def test_a_name_that_would_lose_its_end_is_refused():
    with pytest.raises(MapError) as error:
        pack_name(ServicePortName("default", "w" * 64, "", Protocol.TCP))
    assert error.value.errno == ENAMETOOLONG


def test_a_masqueraded_frontend_says_so():
    assert desc_flags(frontend(masquerade=True)) == enums.DescFlag.LB_DESC_MASQUERADE
    assert desc_flags(frontend()) == 0


def test_a_frontend_that_retries_says_so():
    assert desc_flags(frontend(retry=True)) == enums.DescFlag.LB_DESC_RETRY


def test_a_frontend_with_direct_server_return_says_so():
    assert desc_flags(frontend(dsr=True)) == enums.DescFlag.LB_DESC_DSR


@pytest.mark.parametrize("use", list(BackupUse))
def test_a_frontend_says_how_it_uses_its_backup(use: BackupUse):
    assert backup_use(desc_flags(frontend(backup=use, dsr=True))) is use


def test_a_frontend_that_uses_its_backup_in_two_ways_is_on_it():
    both = enums.DescFlag.LB_DESC_ON_BACKUP | enums.DescFlag.LB_DESC_SPILLS
    assert backup_use(both) is BackupUse.ONLY


@pytest.mark.parametrize("scheduler", [Scheduler.RANDOM, Scheduler.LEAST_CONNECTIONS])
def test_a_frontend_that_may_spill_over_has_its_connections_counted(scheduler: Scheduler):
    found = frontend(counts_open=True, scheduler=scheduler)
    assert desc_flags(found) == enums.DescFlag.LB_DESC_COUNTS_OPEN
