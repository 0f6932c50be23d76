# SPDX-License-Identifier: Apache-2.0
"""Desired states for tests of the sync: by hand, and drawn by hypothesis from a small world.

The world is small so that frontends often move between Services and addresses are shared.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from ebpflb.model.address import WILDCARD, Address, Family, Protocol, parse_address
from ebpflb.model.extensions.apportionment import as_slots, as_turns
from ebpflb.model.extensions.limits import NO_LIMITS, Limits, OpenLimit, rate_limit
from ebpflb.model.extensions.vips import Unserved
from ebpflb.model.plan import Backend, Choice, Frontend, FrontendKey, FrontendType, IfEmpty
from ebpflb.model.service import ServiceName, ServicePortName, TrafficPolicy
from ebpflb.model.source_ranges import Prefix
from ebpflb.words.backup import BackupUse
from ebpflb.words.scheduler import Scheduler

Desired = Mapping[ServiceName, tuple[Frontend, ...]]

ALLOWED = tuple(Prefix(parse_address(text), 128) for text in ("192.0.2.7", "192.0.2.8"))
SOURCES = st.sampled_from(((), ALLOWED[:1], ALLOWED))
NOTHING = Choice((), IfEmpty.REFUSE)


def key(text: str, port: int = 80, protocol: Protocol = Protocol.TCP) -> FrontendKey:
    return FrontendKey(parse_address(text), port, protocol)


def backends(*texts: str, local: bool = False, terminating: bool = False) -> Choice:
    """Backends on port 8080, in order."""
    addresses = sorted(map(parse_address, texts))
    each = (Backend(address, 8080, local, terminating) for address in addresses)
    return Choice(tuple(each), IfEmpty.REFUSE)


def weighted(choice: Choice, *weights: int) -> Choice:
    """The same with the weights of the backends, in order."""
    pairs = zip(choice.backends, weights, strict=True)
    backends = tuple(each._replace(weight=weight) for each, weight in pairs)
    return choice._replace(backends=backends)


def frontend(text: str = "10.96.0.1", choice: Choice = NOTHING, **fields: Any) -> Frontend:
    """Port 80 of default/web as a ClusterIP; keywords are fields of Frontend."""
    plain = Frontend(
        key=key(text),
        type=FrontendType.CLUSTER_IP,
        service=ServicePortName("default", "web", "", Protocol.TCP),
        local=choice,
        others=choice,
        internal_policy=TrafficPolicy.CLUSTER,
        external_policy=TrafficPolicy.CLUSTER,
        affinity_timeout=0,
    )
    return replace(plain, **fields)


def named(service: str, port: str = "") -> ServicePortName:
    return ServicePortName("default", service, port, Protocol.TCP)


def by_service(*frontends: Frontend) -> dict[ServiceName, tuple[Frontend, ...]]:
    desired: dict[ServiceName, tuple[Frontend, ...]] = {}
    for each in frontends:
        name = ServiceName(*each.service[:2])
        desired[name] = (*desired.get(name, ()), each)
    return desired


KINDS: Mapping[FrontendKey, tuple[FrontendType, ...]] = {
    key("10.96.0.1"): (FrontendType.CLUSTER_IP,),
    key("10.96.0.1", 443): (FrontendType.CLUSTER_IP, FrontendType.EXTERNAL_IP),
    key("fd00::1"): (FrontendType.CLUSTER_IP, FrontendType.LOAD_BALANCER),
    FrontendKey(WILDCARD[Family.IPV4], 30000, Protocol.TCP): (FrontendType.NODE_PORT,),
    key("192.0.2.1"): (FrontendType.EXTERNAL_IP, FrontendType.LOAD_BALANCER),
}
PORTS = (named("a"), named("a", "x"), named("b"))
PODS = tuple(map(parse_address, ("10.1.0.1", "10.1.0.2", "10.2.0.1", "fd00:1::1")))
UNSERVED = st.sampled_from((None, *Unserved))
LIMITS = st.sampled_from(
    (
        *(NO_LIMITS, Limits(OpenLimit(5)), Limits(OpenLimit(6, drops=True), OpenLimit(7))),
        Limits(new_per_client=rate_limit(10, per_minute=False, burst=50, drops=True)),
    )
)
POLICIES = st.sampled_from(TrafficPolicy)
SCHEDULED = st.builds(
    lambda scheduler, size: {"scheduler": scheduler, "table_size": size * scheduler.has_table},
    st.sampled_from(Scheduler),
    st.sampled_from((5, 11)),
)


INTERNAL = FrontendType.CLUSTER_IP


def _choices(pods: Mapping[Address, tuple[bool, bool]]) -> st.SearchStrategy[Choice]:
    subsets = st.sets(st.sampled_from(sorted(pods)), max_size=len(pods))
    return st.builds(
        lambda chosen, if_empty: Choice(
            tuple(Backend(pod, 8080, *pods[pod]) for pod in sorted(chosen)), if_empty
        ),
        subsets,
        st.sampled_from(IfEmpty),
    )


def _local_backends(
    pods: Mapping[Address, tuple[bool, bool]],
) -> st.SearchStrategy[tuple[Backend, ...]]:
    """Some of those of this node."""
    backends = [Backend(pod, 8080, *flags) for pod, flags in sorted(pods.items()) if flags[0]]
    if not backends:
        return st.just(())
    return st.sets(st.sampled_from(backends)).map(lambda some: tuple(sorted(some)))


def _weighed(choice: Choice, weights: tuple[int, ...], table_size: int) -> Choice:
    given = weights[: len(choice.backends)]
    if not given:
        return choice
    return weighted(choice, *(as_slots(given, table_size) if table_size else as_turns(given)))


@st.composite
def desired_states(draw: st.DrawFn) -> Desired:
    """Which Service port has which of the frontends, with which backends."""
    flags = st.tuples(st.booleans(), st.booleans())
    pods = {pod: draw(flags) for pod in PODS}
    choices = _choices(pods)
    here = {port: draw(_local_backends(pods)) for port in PORTS}
    limits = {port: draw(LIMITS) for port in PORTS}
    owners = draw(st.tuples(*[st.sampled_from((None, *PORTS)) for _ in KINDS]))
    kinds = {place: draw(st.sampled_from(KINDS[place])) for place in KINDS}
    dsr = {place: kinds[place] is not INTERNAL and draw(st.booleans()) for place in KINDS}
    scheduled = {place: draw(SCHEDULED) for place in KINDS}
    weights = st.sampled_from(((1,) * len(PODS), (1, 9, 2, 3)))

    def choice(place: FrontendKey) -> Choice:
        return _weighed(draw(choices), draw(weights), scheduled[place]["table_size"])

    frontends = [
        Frontend(
            key=place,
            type=kinds[place],
            service=owner,
            local=choice(place),
            others=choice(place),
            internal_policy=draw(POLICIES),
            external_policy=draw(POLICIES),
            affinity_timeout=draw(st.sampled_from((0, 10800))),
            allowed_sources=draw(SOURCES),
            dsr=dsr[place],
            retry=draw(st.booleans()),
            limits=limits[owner],
            here=here[owner] if dsr[place] else (),
            backup=draw(st.sampled_from(BackupUse)),
            counts_open=draw(st.booleans()),
            unserved=None if kinds[place] is INTERNAL else draw(UNSERVED),
            **scheduled[place],
        )
        for place, owner in zip(KINDS, owners, strict=True)
        if owner is not None
    ]
    return by_service(*frontends)


NODE_PORT = FrontendKey(WILDCARD[Family.IPV4], 30000, Protocol.TCP)
