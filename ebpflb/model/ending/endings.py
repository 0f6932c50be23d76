# SPDX-License-Identifier: Apache-2.0
"""Which open TCP connections of this node are ended, so that their clients connect anew.

A connection stays where it was opened: when a Service gets more endpoints, the new ones stay idle
while clients keep their connections. So idle connections of the endpoints that have most are ended,
oldest first, at a rate, until the connections of this node are spread by the weights. A node may
have fewer connections than there are endpoints; then each that was opened before the last endpoint
came is ended or stays, as likely as it would be elsewhere had it been opened now.

Connections that are too old, and those of endpoints that are gone, are ended as well. All of it is
asked for by annotations. Times are in seconds, by any clock that never goes back.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from fractions import Fraction
from hashlib import blake2b
from math import ceil, inf
from typing import NamedTuple, Self

from ebpflb.model.address import WILDCARD, Family, Protocol, SocketAddress, family_of
from ebpflb.model.endpoint import EndpointSlice, endpoints_of
from ebpflb.model.extensions.lifetime import EndingRules, MaxAge, OnEndpointGone
from ebpflb.model.plan import Frontend, FrontendKey, place_of
from ebpflb.model.service import Service, ServiceName, ServicePortName

# How much more than its share an endpoint may have: an even spread by chance is not even.
_TOLERANCE = Fraction(11, 10)
# The rate is kept over this time.
_BURST_SECONDS = 10.0
# Clients connect when they next need to; so long they are counted as if they had.
_RETURN_SECONDS = 60.0


class EndReason(StrEnum):
    """Why a connection is ended."""

    GONE = "endpoint_gone"
    AGE = "max_age"
    UNEVEN = "uneven"


class HeldConnection(NamedTuple):
    """An established connection. cookie: of its socket. idle: 0 with data under way.

    frontend: as the client addressed it. is_outside: whether the client is, for traffic policies.
    """

    cookie: int
    frontend: SocketAddress
    is_outside: bool
    backend: SocketAddress
    age: float
    idle: float


class Ending(NamedTuple):
    """A connection to be ended, if it still has been idle for so many seconds."""

    port: ServicePortName
    connection: HeldConnection
    reason: EndReason
    idle: float


class _Offer(NamedTuple):
    """The endpoints of a frontend for some clients, and when the last one came.

    Clients outside: those on this node, because connections to others have no socket here.
    """

    places: frozenset[SocketAddress]
    grown: float


class _Peers(NamedTuple):
    """Connections that could have the same endpoints, by weight. grown: when the last one came.

    are_spread: whether clients that connect anew would be. left: clients of the port and the family
    whose connections were ended.
    """

    weights: Mapping[SocketAddress, int]
    grown: float
    are_spread: bool
    held: list[HeldConnection]
    left: "_Left"

    @property
    def away(self) -> int:
        """Clients that have not come back."""
        back = sum(each.age < self.left.seconds for each in self.held)
        return max(0, self.left.number - back)


_Ends = tuple[ServicePortName, Family]
"""Of a connection."""


def _ends_of(port: ServicePortName, held: HeldConnection) -> _Ends:
    return port, family_of(held.backend.address)


class _Ended(NamedTuple):
    at: float
    opened: float
    ends: _Ends
    cookie: int

    @classmethod
    def of(cls, ending: Ending, now: float) -> Self:
        held = ending.connection
        return cls(now, now - held.age, _ends_of(ending.port, held), held.cookie)


class _Left(NamedTuple):
    """number: each client once. seconds: since the first connection was ended."""

    number: int = 0
    seconds: float = 0.0

    @classmethod
    def of(cls, ended: Collection[_Ended], now: float) -> Self:
        """Who was ended again had come back before."""
        first = min(each.at for each in ended)
        return cls(sum(each.opened <= first for each in ended), now - first)


_NOTHING = EndingRules()


class Endings:
    """Chooses connections, within the rate of each Service.

    is_rehearsal: those that a rebalance would end which is a dry run. They are not ended, but here
    they count as if they were.
    """

    def __init__(self, *, is_rehearsal: bool = False) -> None:
        self._is_rehearsal = is_rehearsal
        self._offers: dict[ServiceName, dict[tuple[FrontendKey, bool], _Offer]] = {}
        # How many connections of a Service may be ended, as of when.
        self._credit: dict[ServiceName, tuple[float, float]] = {}
        # Those of the last minute that the rules ended.
        self._ended: dict[ServiceName, list[_Ended]] = {}

    def choose(
        self,
        service: Service,
        frontends: Sequence[Frontend],
        slices: Collection[EndpointSlice],
        held: Mapping[ServicePortName, Sequence[HeldConnection]],
        now: float,
    ) -> list[Ending]:
        """The connections of one Service to end now. `frontends`: as planned."""
        asked = service.annotated.ending or _NOTHING
        rules = asked.rehearsed if self._is_rehearsal else asked.in_force
        if rules == _NOTHING or not frontends:
            return []
        name = service.name
        self._follow(name, frontends, now)
        ended = [each for each in self._ended.get(name, ()) if now - each.at < _RETURN_SECONDS]
        of_ends = {ends: [each for each in ended if each.ends == ends] for _, _, ends, _ in ended}
        left = {ends: _Left.of(those, now) for ends, those in of_ends.items()}
        still_open = {each.cookie for each in ended} if self._is_rehearsal else frozenset()
        gone, wanted = list[Ending](), list[Ending]()
        for port, places in _places(service, slices).items():
            mine = [each for each in held.get(port, ()) if each.cookie not in still_open]
            if rules.on_gone is OnEndpointGone.RESET:
                lost = (each for each in mine if each.backend not in places)
                gone += (Ending(port, each, EndReason.GONE, 0) for each in lost)
            there = (each for each in mine if each.backend in places)
            for peers in self._peers(port, frontends, there, left):
                due = _due(peers, rules, now)
                wanted += (Ending(port, each, reason, rules.idle) for each, reason in due)
        taken = wanted[: self._take(name, rules, len(wanted), now)]
        self._ended[name] = ended + [_Ended.of(each, now) for each in taken]
        return gone + taken

    def keep(self, names: Collection[ServiceName]) -> None:
        """Forget all other Services."""
        self._credit = {name: each for name, each in self._credit.items() if name in names}
        self._ended = {name: each for name, each in self._ended.items() if name in names}
        self._offers = {name: each for name, each in self._offers.items() if name in names}

    def _follow(self, name: ServiceName, frontends: Iterable[Frontend], now: float) -> None:
        """Note when endpoints came; those of the first call have always been there."""
        before, offers = self._offers.get(name, {}), {}
        for frontend in frontends:
            for is_outside in (False, True):
                places = frozenset(_weights(frontend, is_outside=is_outside))
                known = before.get((frontend.key, is_outside), _Offer(places, -inf))
                grown = now if places - known.places else known.grown
                offers[frontend.key, is_outside] = _Offer(places, grown)
        self._offers[name] = offers

    def _peers(
        self,
        port: ServicePortName,
        frontends: Iterable[Frontend],
        held: Iterable[HeldConnection],
        left: Mapping[_Ends, _Left],
    ) -> Iterable[_Peers]:
        own = {each.key: each for each in frontends if each.service == port}
        found: dict[frozenset[SocketAddress], _Peers] = {}
        for each in held:
            frontend = _addressed(own, each.frontend, port.protocol)
            if frontend is None:
                continue
            offer = self._offers[ServiceName(*port[:2])][frontend.key, each.is_outside]
            if offer.places not in found:
                weights = _weights(frontend, is_outside=each.is_outside)
                are_spread = frontend.scheduler.is_even and not frontend.affinity_timeout
                gone = left.get(_ends_of(port, each), _Left())
                found[offer.places] = _Peers(weights, offer.grown, are_spread, [], gone)
            found[offer.places].held.append(each)
        return found.values()

    def _take(self, name: ServiceName, rules: EndingRules, wanted: int, now: float) -> int:
        """How many of the wanted connections the rate allows."""
        if not rules.rebalance:
            return wanted
        rate = rules.rebalance.per_minute / 60
        most = max(1.0, rate * _BURST_SECONDS)
        credit, since = self._credit.get(name, (most, now))
        credit = min(most, credit + (now - since) * rate)
        taken = min(wanted, int(credit))
        self._credit[name] = credit - taken, now
        return taken


def _places(
    service: Service, slices: Collection[EndpointSlice]
) -> Mapping[ServicePortName, Collection[SocketAddress]]:
    """All endpoints that the slices name, whatever their state is."""
    found: dict[ServicePortName, set[SocketAddress]] = defaultdict(set)
    for port in service.ports:
        found[port.name].update(map(place_of, endpoints_of(port, slices)))
    return found


def _addressed(
    frontends: Mapping[FrontendKey, Frontend], at: SocketAddress, protocol: Protocol
) -> Frontend | None:
    """The frontend that a client addressed; a NodePort has any address of the node."""
    own = frontends.get(FrontendKey(*at, protocol))
    return own or frontends.get(FrontendKey(WILDCARD[family_of(at.address)], at.port, protocol))


def _weights(frontend: Frontend, *, is_outside: bool) -> Mapping[SocketAddress, int]:
    """Of those that get new connections, and not only one as on trial."""
    choice = frontend.others if is_outside else frontend.local
    return {
        SocketAddress(each.address, each.port): each.weight
        for each in choice.backends
        if not each.ejection.is_left_out and (each.local or not is_outside)
    }


def _due(
    peers: _Peers, rules: EndingRules, now: float
) -> Iterator[tuple[HeldConnection, EndReason]]:
    """The idle ones that are too old or too many at their endpoint, oldest first."""
    held = sorted(peers.held, key=lambda each: each.age, reverse=True)
    idle = [each for each in held if each.idle >= rules.idle]
    is_evened = rules.rebalance and peers.are_spread
    surplus = _surplus(peers, idle, now) if is_evened else frozenset()
    for each in idle:
        if rules.max_age and _is_too_old(each, rules.max_age):
            yield each, EndReason.AGE
        elif each in surplus:
            yield each, EndReason.UNEVEN


def _surplus(
    peers: _Peers, idle: Iterable[HeldConnection], now: float
) -> Collection[HeldConnection]:
    """Those above an even share; those at an endpoint that gets no new ones may stay.

    A tenth more than its share is allowed, which is a whole connection where shares are small: not
    while more than a tenth of all connections, and more than one, are above their shares.
    """
    counts = Counter(each.backend for each in peers.held if each.backend in peers.weights)
    connections, total = counts.total() + peers.away, sum(peers.weights.values())
    shares = {at: Fraction(connections * each, total) for at, each in peers.weights.items()}
    above = sum((max(Fraction(0), count - shares[at]) for at, count in counts.items()), Fraction(0))
    found = set()
    for each in idle:
        if each.backend not in peers.weights:
            continue
        share = shares[each.backend]
        is_near = above <= max(Fraction(1), connections * (_TOLERANCE - 1))
        is_spare = counts[each.backend] > ceil(share * _TOLERANCE if is_near else share)
        was_before = now - each.age < peers.grown
        if is_spare or (share < 1 and was_before and _chance(each.cookie) >= share):
            above -= min(Fraction(1), max(Fraction(0), counts[each.backend] - share))
            counts[each.backend] -= 1
            found.add(each)
    return found


def _is_too_old(held: HeldConnection, limit: MaxAge) -> bool:
    deviation = limit.percent / 100 * (2 * _chance(held.cookie) - 1)
    return held.age > limit.seconds * (1 + deviation)


def _chance(cookie: int) -> Fraction:
    """From 0 to 1, always the same for a connection."""
    digest = blake2b(cookie.to_bytes(8, "big"), digest_size=4).digest()
    return Fraction(int.from_bytes(digest, "big"), 2**32)
