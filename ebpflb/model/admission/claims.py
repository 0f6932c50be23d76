# SPDX-License-Identifier: Apache-2.0
"""Which of several Services gets a frontend that all of them ask for.

A ClusterIP comes before a load-balancer IP, and that before an external IP: the API server gives
out the first, a controller the second, and a user may write anything into the third. Then the older
Service comes first; at equal age, names decide.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ebpflb.model.plan import FrontendKey, FrontendType, frontend_keys, typed_keys
from ebpflb.model.service import Service, ServiceName

# A NodePort has no address, so that only NodePorts compete for it.
_RANKS = {
    each: rank
    for rank, each in enumerate(
        (
            FrontendType.CLUSTER_IP,
            FrontendType.NODE_PORT,
            FrontendType.LOAD_BALANCER,
            FrontendType.EXTERNAL_IP,
        )
    )
}


class Conflict(NamedTuple):
    """A frontend key that two Services claim; `winner` gets it."""

    key: FrontendKey
    winner: ServiceName
    loser: ServiceName


class Claim(NamedTuple):
    """Of several to one frontend the lowest wins. created: when the Service was."""

    rank: int
    created: str
    service: ServiceName


class Claims:
    """For one thread, except owner()."""

    def __init__(self) -> None:
        # By frontend, the winner first.
        self._claims: dict[FrontendKey, tuple[Claim, ...]] = {}
        self._contested: set[FrontendKey] = set()

    def add(self, service: Service) -> None:
        for key, claim in claims_of(service).items():
            self._set(key, tuple(sorted((*self._claims.get(key, ()), claim))))

    def remove(self, service: Service) -> None:
        for key in frontend_keys(service):
            others = (each for each in self._claims[key] if each.service != service.name)
            self._set(key, tuple(others))

    def owner(self, key: FrontendKey) -> ServiceName | None:
        claims = self._claims.get(key)
        return claims[0].service if claims else None

    def claimants(self, key: FrontendKey) -> list[ServiceName]:
        """The Services that ask for a frontend; the first gets it."""
        return [each.service for each in self._claims.get(key, ())]

    @property
    def has_conflicts(self) -> bool:
        return bool(self._contested)

    def conflicts(self) -> list[Conflict]:
        return [
            Conflict(key, self._claims[key][0].service, loser.service)
            for key in sorted(self._contested)
            for loser in self._claims[key][1:]
        ]

    def _set(self, key: FrontendKey, claims: tuple[Claim, ...]) -> None:
        if claims:
            self._claims[key] = claims
        else:
            del self._claims[key]
        if len(claims) > 1:
            self._contested.add(key)
        else:
            self._contested.discard(key)


def claims_of(service: Service) -> Mapping[FrontendKey, Claim]:
    """The best claim of a Service to each frontend that it asks for."""
    claims: dict[int, Claim] = {}
    found: dict[FrontendKey, Claim] = {}
    for port in service.ports:
        for kind, key in typed_keys(port):
            rank = _RANKS[kind]
            # One object for each rank, as there may be very many frontends.
            claim = claims.setdefault(rank, Claim(rank, service.created, service.name))
            found[key] = min(found.get(key, claim), claim)
    return found
