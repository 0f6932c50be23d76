# SPDX-License-Identifier: Apache-2.0
"""Everything the agent has in the kernel: a generation of maps and programs, and the hooks."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set
from errno import E2BIG
from itertools import chain

from ebpflb.agent.build import build_for
from ebpflb.agent.flow_room import crowded_tables, room_for_flows
from ebpflb.agent.interface import (
    GRACE_SECONDS,
    Desired,
    EndedSockets,
    Errors,
    ExpiryStep,
    Refused,
)
from ebpflb.agent.lost_pins import LostPins
from ebpflb.agent.second_set import SecondSet
from ebpflb.agent.setting_flags import flags_of, is_beside, unknown_connections
from ebpflb.agent.status import log_changes, log_forwarding
from ebpflb.agent.tunnels import NodeTunnels
from ebpflb.agent.upkeep import Upkeep
from ebpflb.config.settings import Settings
from ebpflb.dataplane.attach.devices import NetworkState, snapshot, with_present_policy
from ebpflb.dataplane.attach.forwarding import Forwarding, PolicyRules, forwarding
from ebpflb.dataplane.attach.hooks import HookPlaces, Hooks
from ebpflb.dataplane.attach.links import CGROUP_HOOKS, HeldLinks
from ebpflb.dataplane.attach.xdp import XdpSettings, XdpWay
from ebpflb.dataplane.flows.claimed_ports import ClaimedPorts
from ebpflb.dataplane.flows.expiry import Expiry
from ebpflb.dataplane.flows.flow_filter import FilterMarks
from ebpflb.dataplane.flows.lost_sources import forget_masqueraded
from ebpflb.dataplane.flows.settings import write_service_nets, write_settings
from ebpflb.dataplane.flows.source_ports import Reservations
from ebpflb.dataplane.flows.stale_sockets import StaleSockets
from ebpflb.dataplane.flows.udp_tables import move_udp_flows
from ebpflb.dataplane.kernel.dsr_questions import DsrAnswer
from ebpflb.dataplane.kernel.libc import membarrier
from ebpflb.dataplane.kernel.maps import MapSet, open_maps
from ebpflb.dataplane.kernel.probe import Feature, Probe
from ebpflb.dataplane.layout.capacity import Sizes, sizes_for
from ebpflb.dataplane.layout.enums import SettingFlag, word
from ebpflb.dataplane.load.loader import Loader, pinned_sizes
from ebpflb.dataplane.load.pins import Generation, Pins
from ebpflb.dataplane.services.addresses import Referred
from ebpflb.dataplane.services.sync import Sync
from ebpflb.errors import EbpflbError, LoadError, MapError
from ebpflb.log import fields
from ebpflb.model.address import Address, Family, format_address
from ebpflb.model.dsr import TunnelChange
from ebpflb.model.dsr_probe import PeerQuestion
from ebpflb.model.ejection import FailureCounts
from ebpflb.model.pod import PodSockets
from ebpflb.model.service import ServicePortName

_log = logging.getLogger("ebpflb.agent")

# Flows that one expiry step looks at; a change may have to wait some milliseconds for it.
EXPIRY_BUDGET = 2048


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
        self._loader = Loader(self._pins, build_for(self._probe, settings))
        self._links = HeldLinks()
        # Set before start(): receives the records of expired flows.
        self.on_expired: Callable[[Sequence[bytes]], None] | None = None
        # Set by each write, cleared by the thread that waits for it.
        self.written = threading.Event()
        # Fill level of the maps that only the sync fills: (used, capacity). For any thread.
        self.usage: Mapping[str, tuple[int, int]] = {}
        self._in_use: _ActiveGeneration | None = None
        self._lost_pins: LostPins | None = None
        self._node_ips: Mapping[Family, Address] = {}
        self._service_ranges: Sequence[str] = ()
        self._pod_sockets = PodSockets()
        self._policy_rules = PolicyRules()
        self._unknown = unknown_connections(settings)
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

    def report(self) -> dict[str, object]:
        """The network part of /status; empty before the start. For any thread."""
        return {**self._in_use.report(), **self._unknown.report()} if self._in_use else {}

    @property
    def _active(self) -> "_ActiveGeneration":
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
        self._active.renew_reservations(self._active.network)
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

    def follow_network(self, *, repair: bool) -> Errors:
        if repair or not self._pins.links.is_dir():
            self._restore_pins()
        self._second_set.refuse_other_agent()
        network = snapshot(self._settings, self._node_ips, self._policy_rules)
        if network != self._active.network or self._active.errors or repair:
            self._serve(network, look_around=repair)
        else:
            self._active.network = network
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
            self._in_use.write_tunnels(self._in_use.network)

    def follow_keys(self) -> None:
        self._tunnels.follow_keys(self._active.maps)

    def ask_peer(self, question: PeerQuestion) -> str:
        return self._tunnels.ask(question, self._active.network.node_addresses)

    def take_answers(self) -> Iterable[DsrAnswer]:
        return self._tunnels.answers()

    def follow_rules(self) -> None:
        if not self._pins.links.is_dir():
            # A repair makes it again first.
            return
        self._unknown.follow_rules()
        must_serve = self._active.hooks.look_into_pods(self._pod_sockets)
        must_serve |= self._active.resets != self._unknown.flag
        network = with_present_policy(self._active.network, self._policy_rules)
        if must_serve or network != self._active.network:
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

    def take_ended_udp(self) -> bool:
        return self._active.sync.take_ended_udp()

    def end_udp_sockets(self) -> EndedSockets:
        if not self._probe.supports(Feature.SOCKET_DESTROY):
            return EndedSockets({}, pending=False)
        return EndedSockets(*self._active.stale_sockets.end())

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
        active = _ActiveGeneration(
            generation, maps, hooks, self._settings, self.on_expired, self._tunnels
        )
        active.way_of_flows = self._loader.way_of_flows(generation)
        active.sync.load()
        # Hooks of an earlier run, then the first new one, already allocate source ports.
        active.renew_reservations(network)
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
            self._active.resets = self._unknown.flag
        if self._active.serve(network, self._service_ranges):
            self._loader.finish(self._active.generation)
            if self._active.end_way_of_flows() & SettingFlag.LB_SETTING_DIVERT:
                self._upkeep.bring_flows_back(self._active.maps)
            move_udp_flows(self._active.maps)

    def _wrote(self, refused: Refused) -> Refused:
        self.usage = self._active.sync.usage()
        self.written.set()
        return refused


class _ActiveGeneration:
    """A generation's maps and everything that writes them, and its programs at the hooks."""

    def __init__(
        self,
        generation: Generation,
        maps: MapSet,
        hooks: Hooks,
        settings: Settings,
        on_expired: Callable[[Sequence[bytes]], None] | None,
        tunnels: NodeTunnels,
    ) -> None:
        self.generation = generation
        self.maps, self.hooks = maps, hooks
        self.sync = Sync(self.maps, grace=GRACE_SECONDS, epoch=generation.epoch)
        self.stale_sockets = StaleSockets(self.maps)
        # The network as last served, and the errors from that.
        self.network = NetworkState({}, {}, {})
        self.errors: Errors = {}
        # Where new flows go while some hooks do not use these tables yet.
        self.way_of_flows = SettingFlag(0)
        # Whether unknown connections are reset; not before all flows are in these tables.
        self.resets = SettingFlag(0)
        self._settings = settings
        self._tunnels = tunnels
        self._expiry = Expiry(self.maps, budget=EXPIRY_BUDGET, tell=on_expired)
        self._flow_filter = FilterMarks(self.maps, EXPIRY_BUDGET)
        self._reservations = Reservations(self.maps, settings.service_node_port_range)
        self._claims = ClaimedPorts(self.maps)
        self._is_beside = is_beside(settings)
        self._forwarding: Forwarding | None = None
        self._xdp_told: Mapping[int, XdpWay] = {}
        # Whether its programs have been attached to all cgroup hooks.
        self.is_serving = False
        self._is_expiring = False
        # Whether addresses or ports may have become unused since the last expiry pass began.
        self._may_forget = True

    def write(self, desired: Desired, *, keep_others: bool) -> Refused:
        self._may_forget = True
        write = self.sync.apply if keep_others else self.sync.resync
        if not self._is_beside:
            return write(desired)
        moving = self.sync.moving(desired)
        if moving.comes and self.is_serving:
            self._reservations.renew(self.network.node_addresses)
        if moving.leaving:
            self._claims.claim(moving.leaving.__contains__)
        refused = write(desired)
        if moving.leaving:
            self._claims.claim(self.sync.is_left)
        return refused

    def renew_reservations(self, network: NetworkState) -> None:
        self._reservations.renew(network.node_addresses)

    def serve(self, network: NetworkState, service_ranges: Sequence[str]) -> bool:
        """Bring settings, addresses and hooks in line with the network; sets `errors`.

        Returns true when the programs are attached to all cgroup hooks for the first time.
        """
        errors: dict[str, EbpflbError] = {}
        self._tell_forwarding(network)
        self.write_tunnels(network)
        write_service_nets(self.maps["lb_service_nets"], service_ranges)
        if network.node_addresses != self.network.node_addresses:
            self._may_forget = True
            try:
                self.sync.set_node_addresses(network.node_addresses)
            except MapError as error:
                if error.errno != E2BIG:
                    raise
                errors[error.map_name] = error
        applied = self.hooks.apply(network, self._xdp_settings(network))
        self._tell_xdp(network)
        # The hooks may have found pods whose sockets must be left alone.
        self._write_settings(network)
        self._forget_lost(self.network.reachable() - network.reachable())
        log_changes(applied.changes)
        self.errors = {**errors, **applied.errors}
        self.network = network
        if self.is_serving or CGROUP_HOOKS.keys() & applied.errors:
            return False
        self.is_serving = True
        return True

    def write_tunnels(self, network: NetworkState) -> None:
        """Also writes the settings, which contain the tunnels' source addresses."""
        self._write_settings(network)
        self._tunnels.write(self.maps, network.node_addresses)

    def _forget_lost(self, addresses: Set[Address]) -> None:
        if addresses and (count := forget_masqueraded(self.maps, addresses)):
            lost = [*map(format_address, addresses)]
            text = "removed UDP flows masqueraded with addresses that are gone or cut off"
            _log.info(text, extra=fields(count=count, addresses=lost))

    def end_way_of_flows(self) -> SettingFlag:
        """Call once all hooks use these tables; returns where flows went until now."""
        ended, self.way_of_flows = self.way_of_flows, SettingFlag(0)
        if ended:
            self._write_settings(self.network)
        return ended

    def _write_settings(self, network: NetworkState) -> None:
        write_settings(
            self.maps["lb_settings"],
            self._settings,
            flags=flags_of(self._settings, network, tc_only_pods=self.hooks.has_tc_only_pods)
            | self.way_of_flows
            | self.resets,
            primary={**network.primary, **self._tunnels.sources(network.node_addresses)},
            dsr_port=self._tunnels.port,
        )

    def _tell_forwarding(self, network: NetworkState) -> None:
        chosen = forwarding(self._settings.forwarding, network.policy_engine)
        if chosen != self._forwarding:
            self._forwarding = chosen
            log_forwarding(chosen)

    def _xdp_settings(self, network: NetworkState) -> XdpSettings:
        is_stack = forwarding(self._settings.forwarding, network.policy_engine).way == "stack"
        return XdpSettings(self._settings.xdp, self._settings.xdp_devices, is_stack)

    def _tell_xdp(self, network: NetworkState) -> None:
        """Log once per device how XDP is attached, unless XDP is off."""
        if self._settings.xdp == "off":
            return
        for ifindex, way in self.hooks.xdp.items():
            if self._xdp_told.get(ifindex) != way:
                name = network.devices[ifindex].name
                _log.info("XDP: %s", way.mode or "none", extra=fields(device=name, why=way.why))
        self._xdp_told = self.hooks.xdp

    def report(self) -> dict[str, object]:
        """For /status, as JSON values: the devices, and who routes masqueraded packets."""
        return {
            "forwarding": self._forwarding._asdict() if self._forwarding else None,
            "devices": [
                {"name": each.name, "kind": word(each.kind), "why": each.why}
                for each in self.network.devices.values()
            ],
            "xdp": self._report_xdp(),
            "tunnels": self._tunnels.report(),
            "left_out": dict(self.network.left_out),
        }

    def _report_xdp(self) -> list[dict[str, str]]:
        """For each host device; empty if XDP is off."""
        if self._settings.xdp == "off":
            return []
        return [
            {"name": self.network.devices[ifindex].name, "mode": way.mode, "why": way.why}
            for ifindex, way in self.hooks.xdp.items()
            if ifindex in self.network.devices
        ]

    def expire(self) -> ExpiryStep:
        if (
            self._reservations.step(self.network.node_addresses)
            or (self._is_beside and self._claims.step(self.sync.is_left))
            or (self.is_serving and not self.errors and self._flow_filter.step())
        ):
            return ExpiryStep(0, finished=False)
        idle: Set[Referred] = frozenset()
        # Before it serves, flows may be in the tables of another generation.
        if not self._is_expiring and self._may_forget and self.is_serving:
            idle, self._may_forget = self.sync.idle(), False
        expired = self._expiry.step(idle)
        self._is_expiring = expired.unused is None
        self.sync.forget(expired.unused or frozenset())
        return ExpiryStep(expired.deleted, not self._is_expiring)
