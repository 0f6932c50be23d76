# SPDX-License-Identifier: Apache-2.0
"""The dataplane of the node, as the loop drives it: which generation is in use, and its changes."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain

from ebpflb.agent.dataplane.flow_tables import crowded_tables, room_for_flows
from ebpflb.agent.dataplane.generation import ActiveGeneration
from ebpflb.agent.dataplane.lost_pins import LostPins
from ebpflb.agent.dataplane.second_set import SecondSet
from ebpflb.agent.dataplane.served_network import is_beside
from ebpflb.agent.dataplane.tunnels import NodeTunnels
from ebpflb.agent.dataplane.upkeep import Upkeep
from ebpflb.agent.interface import Desired, EndedSockets, Errors, ExpiryStep, Refused
from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach.devices import NetworkState, snapshot, with_present_policy
from ebpflb.dataplane.attach.forwarding import PolicyRules
from ebpflb.dataplane.attach.hooks import HookPlaces, Hooks
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, HeldLinks
from ebpflb.dataplane.attach.other_proxy import ProxyRules
from ebpflb.dataplane.flows.settings import write_service_nets
from ebpflb.dataplane.flows.unknown_connections import UnknownConnections
from ebpflb.dataplane.kernel.dsr_questions import DsrAnswer
from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.layout.capacity import Sizes, sizes_for
from ebpflb.dataplane.layout.enums import SettingFlag
from ebpflb.dataplane.load.loader import Build, Loader, pinned_sizes
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.errors import EbpflbError, LoadError
from ebpflb.log import fields
from ebpflb.model.address import Address, Family
from ebpflb.model.agent_report import NetworkReport, WayReport
from ebpflb.model.dsr import TunnelChange
from ebpflb.model.dsr_probe import PeerQuestion
from ebpflb.model.ejection import FailureCounts
from ebpflb.model.ending.endings import Ending, HeldConnection
from ebpflb.model.pod import PodSockets
from ebpflb.model.service import ServicePortName

_log = logging.getLogger("ebpflb.agent")


class NodeDataplane:
    """The dataplane in the kernel, for the network namespace of the calling thread.

    It implements `interface.Dataplane`. What is attached keeps working throughout: a new
    generation is filled before the hooks move to it.
    """

    def __init__(self, settings: Settings) -> None:
        """Lock the pins. ProbeError for what the machine lacks, PinError if another agent has them.

        AttachError if another one has its programs here, with pins of its own. ConfigError if the
        cgroup root is not a cgroup v2 directory.
        """
        self._settings = settings
        self._room = room_for_flows(settings)
        self._probe = Probe()
        self._probe.require()
        self._second_set = SecondSet(settings.bpffs_root, settings.cgroup_root)
        try:
            self._second_set.refuse_other_agent()
            self._pins = Pins(settings.bpffs_root)
        except EbpflbError:
            self._second_set.close()
            raise
        self._loader = Loader(self._pins, _build_for(self._probe, settings))
        self._links = HeldLinks()
        # Set before start(): receives the records of expired flows.
        self.on_expired: Callable[[Sequence[bytes]], None] | None = None
        # Set by each write, cleared by the thread that waits for it.
        self.written = threading.Event()
        # Fill level of the maps that only the sync fills: (used, capacity). For any thread.
        self.usage: Mapping[str, tuple[int, int]] = {}
        self._in_use: ActiveGeneration | None = None
        self._lost_pins: LostPins | None = None
        self._node_ips: Mapping[Family, Address] = {}
        self._service_ranges: Sequence[str] | None = None
        self._pod_sockets = PodSockets()
        self._policy_rules = PolicyRules()
        self._unknown = UnknownConnections(is_beside=is_beside(settings), rules=ProxyRules().sign)
        self._upkeep = Upkeep(self._unknown)
        self._tunnels = NodeTunnels(settings)
        self._quiesced: float | None = None

    @property
    def families(self) -> tuple[str, ...]:
        """The IP families that the kernel has."""
        has_ipv6 = self._probe.supports(Feature.IPV6)
        return tuple(family.text for family in Family if has_ipv6 or family is not Family.IPV6)

    @property
    def lacks(self) -> Mapping[str, str]:
        """The features that the kernel lacks -> what is done without them."""
        return self._probe.lacks()

    @property
    def maps(self) -> MapSet | None:
        """The maps in use, None before the start. For any thread."""
        return self._in_use.maps if self._in_use else None

    def note_sync(self, when: float) -> None:
        """Keep, beside the maps, when they last had all that was wanted: seconds since 1970."""
        self._active.generation.note_sync(when)

    def addresses_in(self, cookie: int) -> Collection[Address]:
        """The addresses in a pod's network namespace; empty if unknown. For any thread."""
        return self._in_use.hooks.addresses_in(cookie) if self._in_use else ()

    def report(self) -> NetworkReport:
        """The network part of /status; empty before the start. For any thread."""
        if not self._in_use:
            return NetworkReport()
        return self._in_use.network.report(WayReport(*self._unknown.treatment))

    @property
    def _active(self) -> ActiveGeneration:
        if self._in_use is None:
            raise RuntimeError("not started")
        return self._in_use

    def close(self) -> None:
        """Unlock the pins; they and everything attached stay."""
        if self._in_use:
            self._in_use.hooks.close()
        self._links.close()
        self._tunnels.close()
        self._pins.close()
        self._second_set.close()

    def start(self, desired: Desired, *, keep_others: bool) -> Refused:
        generation = self._loader.load(self._sizes_for(desired))
        refused = self._move(generation, desired, keep_others=keep_others)
        # For ports that sockets opened while the hooks were being attached.
        self._active.flows.renew_reservations(self._active.network.state.node_addresses)
        for hook in CGROUP_HOOKS:
            if hook in self._active.errors:
                raise self._active.errors[hook]
        return refused

    def grow(self, desired: Desired, *, keep_others: bool) -> Refused:
        """LoadError if the maps already have far more room than `desired` could need."""
        self._restore_pins()
        sizes, needed = pinned_sizes(self._active.generation), self._sizes_for(desired)
        if sizes == sizes.at_least(needed.grown().grown()):
            raise LoadError(f"the maps are large enough already: {sizes}")
        sizes = sizes.grown().at_least(needed)
        _log.info("enlarging maps", extra=fields(frontends=sizes.frontends, slots=sizes.slots))
        return self._move(self._loader.load(sizes), desired, keep_others=keep_others)

    def lacks_room_for_flows(self) -> bool:
        return bool(crowded_tables(self._active.maps, self._room.evicting))

    def grow_flows(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._restore_pins()
        larger = crowded_tables(self._active.maps, self._room.evicting)
        sizes = pinned_sizes(self._active.generation).with_larger(larger, self._room.evicting)
        self._upkeep.leave_flows()
        room = {name: getattr(sizes, name) for name in larger}
        _log.info("enlarging maps", extra=fields(**room))
        return self._move(self._loader.load(sizes, larger), desired, keep_others=keep_others)

    def apply(self, changed: Desired) -> Refused:
        return self._wrote(self._active.write(changed, keep_others=True))

    def resync(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._active.sync.load()
        return self._wrote(self._active.write(desired, keep_others=keep_others))

    def compare(self) -> Iterator[str]:
        return self._active.sync.compare()

    def follow_network(self, *, repair: bool) -> Errors:
        if repair or not self._pins.links.is_dir():
            self._restore_pins()
        self._second_set.refuse_other_agent()
        network = snapshot(self._settings, self._node_ips, self._policy_rules)
        if network != self._active.network.state or self._active.errors or repair:
            self._serve(network, look_around=repair)
        else:
            self._active.network.state = network
        return self._active.errors

    def _restore_pins(self) -> None:
        if self._lost_pins:
            self._lost_pins.restore(is_complete=self._active.is_serving)

    def has_lost_pins(self) -> bool:
        pins = self._lost_pins
        return bool(pins and pins.are_there(is_complete=self._active.is_serving))

    def set_pods(self, pods: PodSockets) -> None:
        self._pod_sockets = pods

    def follow_tunnels(self, change: TunnelChange, *, keep_others: bool, compare: bool) -> None:
        self._tunnels.follow(change, keep_others=keep_others, compare=compare)
        if self._in_use:
            self._in_use.network.write_tunnels(self._in_use.network.state)

    def follow_keys(self) -> None:
        self._tunnels.follow_keys(self._active.maps)

    def ask_peer(self, question: PeerQuestion) -> str:
        return self._tunnels.ask(question, self._active.network.state.node_addresses)

    def take_answers(self) -> Iterable[DsrAnswer]:
        return self._tunnels.answers()

    def follow_rules(self) -> None:
        if not self._pins.links.is_dir():
            # A repair makes it again first.
            return
        self._unknown.follow_rules()
        must_serve = self._active.hooks.look_into_pods(self._pod_sockets)
        must_serve |= self._active.network.resets != self._unknown.flag
        network = with_present_policy(self._active.network.state, self._policy_rules)
        if must_serve or network != self._active.network.state:
            self._serve(network)

    def set_node_ips(self, node_ips: Mapping[Family, Address]) -> None:
        self._node_ips = node_ips

    def set_service_ranges(self, ranges: Sequence[str]) -> None:
        self._service_ranges = ranges
        left_out = write_service_nets(self._active.maps["lb_service_nets"], ranges)
        if left_out:
            _log.warning("too many ServiceCIDRs, ignored: %s", ", ".join(left_out))

    def prepare_collect(self, ready: Callable[[], None]) -> None:
        def wait() -> None:
            began = time.monotonic()
            membarrier()
            self._quiesced = began
            ready()

        threading.Thread(target=wait, name="ebpflb-quiesce", daemon=True).start()

    def collect(self) -> None:
        self._active.sync.collect(self._quiesced)

    def expire(self) -> ExpiryStep:
        step = self._active.expire()
        if step.finished:
            self._upkeep.begin(self._active.maps)
        return step

    def read_failures(self, also: Iterable[ServicePortName]) -> FailureCounts:
        return self._active.sync.failures(also)

    def held_connections(
        self, ports: Collection[ServicePortName]
    ) -> Mapping[ServicePortName, Sequence[HeldConnection]]:
        if not self._probe.supports(Feature.SOCKET_DESTROY):
            return {}
        return self._active.flows.held.read(self._active.sync.identities(ports))

    def end_connections(self, wanted: Collection[Ending]) -> list[Ending]:
        return self._active.flows.held.end(wanted)

    def read_open(self, wanted: Iterable[ServicePortName]) -> Mapping[ServicePortName, int]:
        return self._active.sync.open_connections(wanted)

    def take_ended_udp(self) -> bool:
        return self._active.sync.take_ended_udp()

    def end_udp_sockets(self) -> EndedSockets:
        if not self._probe.supports(Feature.SOCKET_DESTROY):
            return EndedSockets({}, pending=False)
        return EndedSockets(*self._active.flows.stale_sockets.end())

    def _sizes_for(self, desired: Desired) -> Sizes:
        served = (each for each in chain.from_iterable(desired.values()) if not each.withdrawn)
        return sizes_for(served, self._room)

    def _move(self, generation: Generation, desired: Desired, *, keep_others: bool) -> Refused:
        """Fill the maps of a generation, then switch the hooks to its programs."""
        network = snapshot(self._settings, self._node_ips, self._policy_rules)
        maps = open_maps(generation.maps)
        places = HookPlaces(generation.progs, self._pins.links, self._settings.cgroup_root)
        hooks = Hooks(places, maps, self._probe, self._links, self._settings.attach)
        hooks.pods = self._pod_sockets
        active = ActiveGeneration(
            generation, maps, hooks, self._settings, self.on_expired, self._tunnels
        )
        active.network.way_of_flows = self._loader.way_of_flows(generation)
        active.sync.load()
        # Hooks of an earlier run, then the first new one, already allocate source ports.
        active.flows.renew_reservations(network.node_addresses)
        refused = active.write(desired, keep_others=keep_others)
        if self._in_use:
            self._in_use.hooks.close()
        self._in_use = active
        self._lost_pins = LostPins(self._pins, generation, maps, hooks)
        self._serve(network, look_around=True)
        return self._wrote(refused)

    def _serve(self, network: NetworkState, *, look_around: bool = False) -> None:
        """`look_around`: also take off what of another set is at our hooks."""
        self._serve_network(network)
        if look_around:
            programs = self._active.hooks.programs.values()
            taken, errors = self._second_set.take_off({each.identity for each in programs})
            if taken:
                # XDP has room for one program.
                self._serve_network(network)
            self._active.errors = {**self._active.errors, **errors}

    def _serve_network(self, network: NetworkState) -> None:
        if self._active.is_serving:
            self._active.network.resets = self._unknown.flag
        if self._active.serve(network, self._service_ranges):
            self._loader.finish(self._active.generation)
            if self._active.network.end_way_of_flows() & SettingFlag.LB_SETTING_DIVERT:
                self._upkeep.bring_flows_back(self._active.maps)

    def _wrote(self, refused: Refused) -> Refused:
        self.usage = self._active.sync.usage()
        self.written.set()
        return refused


def _build_for(probe: Probe, settings: Settings) -> Build:
    """What the programs are compiled for."""
    return Build(
        has_set_retval=probe.supports(Feature.SET_RETVAL),
        has_coarse_clock=probe.supports(Feature.COARSE_CLOCK),
        has_fib_mtu=probe.supports(Feature.FIB_MTU),
        has_sock_ops=probe.supports(Feature.SOCK_OPS),
        has_xdp=settings.xdp != "off",
        # With frags, generic XDP copies a packet without its mac_len (Linux 6.18), and tc then
        # sees no Ethernet header.
        has_xdp_frags=settings.xdp != "generic" and probe.supports(Feature.XDP_FRAGS),
        has_dsr=settings.dsr != "off",
    )
