# SPDX-License-Identifier: Apache-2.0
"""UDP scripts: an exchange, a pause after which a flow may be a stream, then anything."""

from random import Random

from ebpflb.model.address import Protocol
from tests.bpf.netfilter.script import Flaw, Pause, Script, Sent, Side, Silence, Step

# Neither they nor sums of three are near a timeout, which are the same here and in netfilter.
SILENCES = (6, 50, 200)


def udp_script(seed: int) -> Script:
    """One client with one port."""
    random = Random(seed)
    steps: list[Step] = [Sent(Side.CLIENT, size=10)]
    steps += [_datagram(random) for _ in range(random.randint(0, 3))]
    steps.append(Pause())
    for _ in range(random.randint(2, 6)):
        steps.append(_datagram(random))
        if random.random() < 0.3:
            steps.append(Silence(random.choice(SILENCES)))
    return Script(seed, Protocol.UDP, steps)


def _datagram(random: Random) -> Sent:
    side = random.choice(tuple(Side))
    flaw = Flaw.NONE
    if random.random() < 0.15:
        flaw = Flaw.MAC if side is Side.CLIENT and random.random() < 0.5 else Flaw.CHECKSUM
    return Sent(side, size=random.choice((0, 1, 10, 1000)), flaw=flaw)
