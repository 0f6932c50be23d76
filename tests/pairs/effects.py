# SPDX-License-Identifier: Apache-2.0
"""What each annotation of a Service is for, as something to be seen in the model of a node.

Each function tells whether a Service with these annotations shows the effect of one of them, with
that value: in both families, and of TCP and UDP where it concerns both.
"""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from ebpflb.model.address import Family, Protocol
from ebpflb.model.ejection import EjectionState, FailureCount
from ebpflb.model.ending.endings import EndReason
from ebpflb.model.plan import Choice, FrontendType, IfEmpty
from ebpflb.model.service import ServicePortName, TrafficPolicy
from ebpflb.words import annotations as words
from ebpflb.words.backup import BackupUse
from ebpflb.words.scheduler import TABLE_SIZE, Scheduler
from tests.pairs.world import ELSEWHERE, GONE, LENT, OWN, PAGE, SPARE, WEB, World, place

Annotations = Mapping[str, str]

EVEN, DRY_RUN = "idle 30s, 60000/min", "idle 30s, 60000/min, dry-run"
SHARES = "version=v1:30,version=v2:10"
_MANY = 40
_VIPS = (FrontendType.EXTERNAL_IP, FrontendType.LOAD_BALANCER)


class Effect(NamedTuple):
    """values: one of each kind. is_seen: by all annotations of a Service, and this one's value.

    walked: its values in real traffic, "" for none. needs: other annotations without which it has
    no effect.
    """

    values: Sequence[str]
    is_seen: Callable[[Annotations, str], bool]
    walked: Sequence[str]
    needs: Annotations = MappingProxyType({})


def _by_scheduler(given: Annotations, value: str) -> bool:
    size = TABLE_SIZE if Scheduler(value).has_table else 0
    return all((each.scheduler, each.table_size) == (value, size) for each in World(given).plan())


def _is_ejected(given: Annotations, _: str) -> bool:
    """One that fails gets no TCP any more, and UDP as before."""
    world = World(given)
    port = ServicePortName(*WEB, "tcp", Protocol.TCP)
    failing = {place(1, family): FailureCount(9, witnesses=3, clients=3) for family in Family}
    world.changes.observe_failures({port: failing}, 0.0)
    places = {place(1, family) for family in Family}

    def has_it(choice: Choice) -> bool:
        return any((each.address, each.port) in places for each in choice.backends)

    states = {each.ejection for choice in world.choices(Protocol.TCP) for each in choice.backends}
    return (
        states == {EjectionState.WATCHED}
        and not any(map(has_it, world.choices(Protocol.TCP)))
        and all(map(has_it, world.choices(Protocol.UDP)))
    )


def _returns_directly(given: Annotations, _: str) -> bool:
    plan = World(given).plan()
    return all(each.dsr == (each.type is not FrontendType.CLUSTER_IP) for each in plan)


def _retries(given: Annotations, _: str) -> bool:
    return all(each.retry == (each.key.protocol is Protocol.TCP) for each in World(given).plan())


def _is_limited_each(given: Annotations, value: str) -> bool:
    plan = World(given).plan()
    return all(str(each.limits.per_endpoint) == value and each.counts_open for each in plan)


def _limits_clients(given: Annotations, value: str) -> bool:
    plan = World(given).plan()
    return all(str(each.limits.per_client) == value and each.counts_open for each in plan)


def _slows_clients(given: Annotations, value: str) -> bool:
    return all(str(each.limits.new_per_client) == value for each in World(given).plan())


def _is_weighed(given: Annotations, _: str) -> bool:
    """The share of the only endpoint of v2."""
    return all(
        len(each.backends) == len(OWN) and abs(each.shares[1] - 0.25) < 0.001
        for each in World(given).choices()
    )


def _is_evened(given: Annotations, value: str) -> bool:
    is_dry_run = value == DRY_RUN
    found = {
        rehearsal: set(
            World(given).ended([1] * _MANY, age=100.0, idle=60.0, is_rehearsal=rehearsal)
        )
        for rehearsal in (False, True)
    }
    return found == {is_dry_run: {EndReason.UNEVEN}, not is_dry_run: set()}


def _gets_too_old(given: Annotations, _: str) -> bool:
    """After a second without data, and all of them at once."""
    found = World(given).ended(OWN * _MANY, age=7200.0, idle=1.5)
    return found == [EndReason.AGE] * (2 * _MANY * len(OWN))


def _is_reset(given: Annotations, _: str) -> bool:
    return World(given).ended((GONE,), age=5.0, idle=0.0) == [EndReason.GONE] * 2


def _is_on_backup(given: Annotations, _: str) -> bool:
    world = World(given, ready=False)
    backends = {len(each.backends) for each in world.choices()}
    return backends == {len(LENT)} and {each.backup for each in world.plan()} == {BackupUse.ONLY}


def _lends(given: Annotations, _: str) -> bool:
    found = World(given).lend_to(PAGE)
    return bool(found) and all(len(each.others.backends) == len(OWN) for each in found)


def _spills(given: Annotations, value: str) -> bool:
    world = World(given)
    names = {port.name for port in world.service.ports}
    world.changes.backups.observe(dict.fromkeys(names, int(value)), 0.0)
    backends = {len(each.backends) for each in world.choices()}
    uses = {each.backup for each in world.plan()}
    return (backends, uses) == ({len(OWN) + len(LENT)}, {BackupUse.SPILL})


def _leaves_other_ports(given: Annotations, value: str) -> bool:
    plan = World(given).plan()
    return all(each.unserved == (value if each.type in _VIPS else None) for each in plan)


def _lets_pass(given: Annotations, _: str) -> bool:
    """Under policy Local, with an endpoint on another node alone."""
    world = World(given, policy=TrafficPolicy.LOCAL, numbers=(ELSEWHERE,))
    found = {each.others for each in world.plan() if each.type in _VIPS}
    return found == {Choice((), IfEmpty.PASS)}


_SCHEDULERS = [each.value for each in Scheduler]

EFFECTS: Mapping[str, Effect] = {
    words.SCHEDULER: Effect(_SCHEDULERS, _by_scheduler, _SCHEDULERS),
    words.EJECTION: Effect(["3"], _is_ejected, ["", "on", "3"]),
    words.DSR: Effect(["true"], _returns_directly, ["", "true"]),
    words.RETRY: Effect(["true"], _retries, ["", "true"]),
    words.MAX_CONNECTIONS: Effect(["7", "7, drop"], _is_limited_each, ["", "10000", "10000, drop"]),
    words.MAX_CONNECTIONS_PER_CLIENT: Effect(
        ["7", "7, drop"], _limits_clients, ["", "10000", "10000, drop"]
    ),
    words.NEW_CONNECTIONS_PER_CLIENT: Effect(
        ["7/s, burst 9", "7/min, burst 1, drop"], _slows_clients, ["", "9000/s", "9000/s, drop"]
    ),
    words.WEIGHTS: Effect([SHARES], _is_weighed, ["", "pods", SHARES]),
    words.REBALANCE: Effect(
        [EVEN, DRY_RUN], _is_evened, ["", "idle 1s, 6000/min", "idle 1s, 6000/min, dry-run"]
    ),
    words.MAX_CONNECTION_AGE: Effect(["1h±10%"], _gets_too_old, ["", "1h±10%"]),
    words.ON_ENDPOINT_GONE: Effect(["reset"], _is_reset, ["", "keep", "reset"]),
    words.BACKUP: Effect([SPARE.name], _is_on_backup, ["", SPARE.name]),
    words.BACKUP_FOR: Effect([PAGE.namespace], _lends, ["", "*"]),
    words.SPILL_AT: Effect(["10"], _spills, ["", "1", "1000"], {words.BACKUP: SPARE.name}),
    words.VIP_UNSERVED: Effect(
        ["reject", "drop", "pass"], _leaves_other_ports, ["", "reject", "drop", "pass"]
    ),
    words.NO_LOCAL_ENDPOINT: Effect(["pass"], _lets_pass, ["", "drop", "pass"]),
}


def is_seen(name: str, value: str, others: Annotations) -> bool:
    """Whether an annotation shows its effect, beside others of the Service."""
    effect = EFFECTS[name]
    return effect.is_seen({**effect.needs, **others, name: value}, value)
