# SPDX-License-Identifier: Apache-2.0
"""Twenty thousand hostile packets for each seed: each one passes unchanged, is dropped and counted,
or is translated correctly.
"""

from collections import Counter
from random import Random

from ebpflb.dataplane.layout.structs import LbClientUse
from tests.bpf.fuzz.corpus import Corpus
from tests.bpf.fuzz.judge import HOOKS, Judge, Shot
from tests.bpf.fuzz.mutation import mutate
from tests.bpf.harness.datapath import Datapath
from tests.bpf.harness.loading import SIZES
from tests.bpf.harness.services import BACKEND_PORT

ROUNDS, PACKETS = 100, 200
LIVING = {
    "lb_affinity",
    "lb_client_uses",
    "lb_open",
    "lb_conntrack",
    "lb_ct_dsr",
    "lb_ct_short",
    "lb_ct_stream",
    "lb_ct_udp",
    "lb_fragments",
    "lb_stack_nat",
    "lb_count_back",
    "lb_count_drop",
    "lb_count_front",
    "lb_count_xdp",
    "lb_histograms",
    "lb_flow_filter",
    "lb_reply_filter",
    "lb_turns",
}
BOUNDS = {
    "lb_affinity": SIZES.affinity,
    "lb_conntrack": SIZES.conntrack,
    "lb_ct_dsr": SIZES.ct_dsr,
    "lb_ct_short": SIZES.ct_short,
    "lb_ct_stream": SIZES.ct_stream,
    "lb_ct_udp": SIZES.ct_udp,
    "lb_fragments": 8192,
}
OUTCOMES = {
    "passed",
    "dropped",
    "answered",
    "translated",
    "error translated",
    "tunneled",
    "returned",
}


def hostile(random: Random, corpus: Corpus) -> Shot:
    """A mutated seed, usually at the hook where it belongs."""
    seed, other = random.choices(corpus.seeds, k=2)
    if random.random() < 0.1:
        programs = [name for name in HOOKS if ("l3" in name) == ("l3" in seed.program)]
        seed = seed._replace(program=random.choice(programs))
    frame = mutate(random, seed.frame, other.frame, seed.network)
    if seed.may_arrive and random.random() < 0.3:
        port = random.choice((BACKEND_PORT, BACKEND_PORT + 1))
        is_returned = random.random() < 0.3
        frame = corpus.wrapped(seed._replace(frame=frame), port=port, is_returned=is_returned)
    has_gso = seed.program != "lb_xdp" and random.random() < 0.05
    gso_size = random.choice((1, 536, 1448, 65535)) if has_gso else 0
    return seed._replace(frame=frame, gso_size=gso_size)


def still_maps(datapath: Datapath) -> dict[str, bytes]:
    """The maps that no packet may change."""
    return {
        name: b"".join(chunk.keys + chunk.values for chunk in each.chunks())
        for name, each in datapath.maps.items()
        if name not in LIVING
    }


def check_maps(datapath: Datapath, corpus: Corpus, judge: Judge) -> None:
    """Indices are within bounds, no client's count is negative, and flows that got no packet are
    unchanged.
    """
    for name, bound in BOUNDS.items():
        assert sum(chunk.size for chunk in datapath.maps[name].chunks()) <= bound
    uses = map(LbClientUse.from_buffer_copy, dict(datapath.maps["lb_client_uses"].items()).values())
    assert all(each.open >= 0 for each in uses)
    for table in ("lb_ct_short", "lb_ct_udp"):
        now = dict(datapath.maps[table].items())
        for key, value in corpus.flows[table].items():
            found = now.get(key)
            # A flow that is idle for a moment may lose its port to another one.
            has_own = key in judge.touched or judge.opened(found)
            assert has_own or found in (value, None), "a packet changed another flow"


def play(datapath: Datapath, corpus: Corpus, seed: int) -> Counter[str]:
    """Play one seed; returns how often each outcome occurred."""
    random, judge, outcomes = Random(seed), Judge(datapath, corpus.offers), Counter[str]()
    before = still_maps(datapath)
    for number in range(ROUNDS):
        corpus.restore(number)
        judge.begin()
        for _ in range(PACKETS):
            shot = hostile(random, corpus)
            try:
                outcomes[judge.run(shot)] += 1
            except (AssertionError, OSError) as error:
                raise AssertionError(f"{error}\n{shot}\n-> {judge.out.hex()}") from error
        check_maps(datapath, corpus, judge)
    assert still_maps(datapath) == before
    assert outcomes.keys() <= OUTCOMES
    return outcomes
