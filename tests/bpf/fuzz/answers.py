# SPDX-License-Identifier: Apache-2.0
"""One question put to the model, the socket hooks, tc and `ebpflb explain`: all must agree.

Worlds follow each other in the same maps, as changes do on a node.
"""

import errno
import os
from itertools import count
from random import Random

from scapy.layers.inet import ICMP
from scapy.layers.inet6 import ICMPv6DestUnreach

from ebpflb.dataplane.explain.hooks import at_ingress, at_socket
from ebpflb.dataplane.explain.lookups import Lookups, backend_key
from ebpflb.dataplane.explain.steps import Client, ClientKind, Step
from ebpflb.dataplane.kernel.namespaces import own_cookie
from ebpflb.dataplane.kernel.rtnetlink import route_to
from ebpflb.dataplane.layout.enums import AddrFlag, DeviceKind, NetnsFlag
from ebpflb.dataplane.layout.structs import LbDevice
from ebpflb.dataplane.services.sync import Sync
from ebpflb.model.address import Protocol, format_address, parse_address
from ebpflb.model.plan import FrontendKey
from ebpflb.words.connections import Fate
from tests.bpf.harness.asker import Asker, say_who_asks
from tests.bpf.harness.datapath import Datapath, Verdict
from tests.bpf.harness.node import Node
from tests.bpf.harness.numbers import u32
from tests.bpf.harness.packets import IPV4, IPV6, End, Kind, target_of
from tests.bpf.harness.services import node_addresses
from tests.bpf.harness.worlds import Answer, Question, Source, What, World, address_of, make_world

WORLDS, QUESTIONS = 10, 60
# One in this many flows gets a second packet.
FURTHER = 8

FATES = {
    Fate.TRANSLATED: What.TO,
    Fate.REFUSED: What.REFUSED,
    Fate.DROPPED: What.DROPPED,
    Fate.PASSES: What.LEFT,
}
PROGRAMS = {Source.POD: "lb_pod_ingress", Source.OUTSIDE: "lb_host_ingress"}


class Asked:
    """A node's maps, and the sources of answers: the real programs, and `explain`."""

    def __init__(self, datapath: Datapath, node: Node, asker: Asker) -> None:
        self.datapath, self._node, self._asker = datapath, node, asker
        self._client_ports = count(2000)
        node_addresses(datapath, node)
        pod = LbDevice(kind=DeviceKind.LB_DEVICE_WORKLOAD)
        datapath.maps["lb_devices"].update(u32(node.pod.ifindex), bytes(pod))
        self.sync = Sync(datapath.maps, quiesce=lambda: None, grace=0)
        flags = AddrFlag.LB_ADDR_NODE | AddrFlag.LB_ADDR_NODE_PORT
        own = (net_address for net in (IPV4, IPV6) for net_address in (net.node, net.overlay))
        self.sync.set_node_addresses({parse_address(each): flags for each in own})

    def explained_at_tc(self, question: Question, port: int = 0) -> Answer:
        """What `explain` says about a flow's first packet; port: the client's."""
        is_pod = question.source is Source.POD
        device = self._node.pod if is_pod else self._node.uplink
        kind = ClientKind.POD if is_pod else ClientKind.OUTSIDE
        address = parse_address(address_of(question.source, question.net))
        client = Client(kind, address, ifindex=device.ifindex, port=port)
        lookups = Lookups(self.datapath.maps)
        return answer_of(at_ingress(lookups, client, key_of(question), route_to))

    def explained_at_socket(self, question: Question, flags: NetnsFlag) -> Answer:
        """What `explain` says about connect()."""
        address = parse_address(address_of(question.source, question.net))
        client = Client(ClientKind.POD, address, flags, own_cookie())
        return answer_of(at_socket(Lookups(self.datapath.maps), client, key_of(question)))

    def at_socket(self, question: Question) -> Answer:
        """Where connect() leads; drops are left to tc."""
        found = self._asker.connect(question.target, question.proto)
        if found == errno.ECONNREFUSED:
            return Answer(What.REFUSED)
        assert isinstance(found, End), (question, os.strerror(found))
        if found == question.target:
            return Answer(What.LEFT)
        return Answer(What.TO, frozenset({found}))

    def new_port(self) -> int:
        """A client port not used before."""
        return next(self._client_ports)

    def at_tc(self, question: Question, port: int) -> Answer:
        """Where a first packet from the client's port leads."""
        net, is_pod = question.net, question.source is Source.POD
        client = End(address_of(question.source, net), port)
        packet = Kind(net, question.proto).frame(client, question.target)
        device = self._node.pod if is_pod else self._node.uplink
        result = self.datapath.run(PROGRAMS[question.source], packet, ifindex=device.ifindex)
        if result.verdict is Verdict.DROP:
            return Answer(What.DROPPED)
        if ICMP in result.packet or ICMPv6DestUnreach in result.packet:
            return Answer(What.REFUSED)
        target = target_of(result.packet)
        if target == question.target:
            return Answer(What.LEFT)
        return Answer(What.TO, frozenset({target}))


def key_of(question: Question) -> FrontendKey:
    target = question.target
    return FrontendKey(parse_address(target.address), target.port, question.proto)


def answer_of(step: Step) -> Answer:
    """The backends are those with a chance of being chosen."""
    keys = [
        backend_key(each.backend.record)
        for each in step.candidates
        if each.chance and not each.rewrite.reason
    ]
    ends = frozenset(End(format_address(key.address), key.port) for key in keys)
    return Answer(FATES[step.fate], ends)


def check_at_tc(asked: Asked, world: World, question: Question) -> None:
    """The prediction for a flow's second packet must match, too."""
    wanted, explained, port = (
        world.answer(question),
        asked.explained_at_tc(question),
        asked.new_port(),
    )
    seen = asked.at_tc(question, port)
    assert wanted.allows(seen), (question, wanted, seen)
    assert explained.allows(seen), (question, explained, seen)
    assert wanted.allows(explained), (question, wanted, explained)
    again = asked.explained_at_tc(question, port)
    assert again == seen, (question, again, seen)
    if port % FURTHER == 0:
        assert again == asked.at_tc(question, port)


def check_at_socket(asked: Asked, world: World, question: Question) -> None:
    """From a host process, or from a pod under tc cover, which has its own cookie."""
    is_host = question.source is Source.HOST
    flags = NetnsFlag.LB_NETNS_HOST if is_host else NetnsFlag.LB_NETNS_COVERED
    say_who_asks(asked.datapath.maps, flags)
    explained = asked.explained_at_socket(question, flags)
    seen, wanted = asked.at_socket(question), world.answer(question)
    assert explained.allows(seen), (question, explained, seen)
    is_refused_later = question.proto is Protocol.UDP and wanted.what is What.REFUSED
    if wanted.what is What.DROPPED or (is_refused_later and seen.what is What.LEFT):
        wanted = Answer(What.LEFT)
    if not is_host and seen.what is What.LEFT:
        assert may_be_left(world, question), (question, wanted)
        return
    assert wanted.allows(seen), (question, wanted, seen)


def may_be_left(world: World, question: Question) -> bool:
    """UDP of pods, and whatever depends on the client, is left to tc; other traffic passes
    unchanged.
    """
    found = world.frontend(question)
    if question.proto is Protocol.UDP:
        return True
    if found and (found.affinity_timeout or found.allowed_sources):
        return True
    return world.answer(question).what in (What.LEFT, What.DROPPED)


def play(asked: Asked, seed: int) -> set[tuple[Source, What]]:
    """Play the worlds of one seed; returns how often each source met each outcome."""
    random = Random(seed)
    seen = set()
    for _ in range(WORLDS):
        world = make_world(random)
        assert not asked.sync.resync(world.desired)
        asked.sync.collect()
        for question in world.questions(random, QUESTIONS):
            if question.source is not Source.HOST:
                check_at_tc(asked, world, question)
            if question.source is not Source.OUTSIDE and question.proto is not Protocol.SCTP:
                check_at_socket(asked, world, question)
            seen.add((question.source, world.answer(question).what))
    return seen
