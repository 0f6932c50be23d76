# SPDX-License-Identifier: Apache-2.0
from datetime import UTC, datetime

import pytest

from ebpflb.errors import ConfigError, QueryError
from ebpflb.kubectl.asking import NO_AGENT
from ebpflb.kubectl.ui.aside import Heard
from ebpflb.kubectl.ui.following import Following
from ebpflb.kubectl.ui.past import MOST_FLOWS, Past
from ebpflb.kubectl.ui.tally import total
from ebpflb.kubectl.ui.traffic import EdgeTraffic
from ebpflb.model.flow import LostFlows
from tests.ui.flows import failed, flow, of_node
from tests.ui.page import pages_of

END = 1_000_020 - 1_000_020 % 20
NOW = END + 3600.0


def at(second, node="node1", made=flow, **given):
    """A flow, so long before the end of the window."""
    time = datetime.fromtimestamp(END - second, UTC)
    return of_node(node, made(time=f"{time:%Y-%m-%dT%H:%M:%S.%f}000Z", **given))


class Agents:
    """Answers with these flows, and counts the questions."""

    def __init__(self, *found, said=(), failures=None):
        self.heard = Heard(list(found), said, failures or {})
        self.asked = []

    def __call__(self, wanted):
        self.asked.append(wanted)
        return self.heard


def past_of(*found, now=NOW, **others):
    agents = Agents(*found, **others)
    return Past(agents, lambda: now), agents


def nodes(moment):
    return {each["node"]: (each["state"], each["flows"]) for each in moment.nodes}


def test_a_window_is_counted_as_if_it_were_now():
    past, agents = past_of(at(290), at(50), at(40, "node2", failed), at(39), at(0), at(-5), at(301))
    moment = past.at(END, ["node1"])
    assert agents.asked == [{"since": "3930s", "until": "3570s", "limit": str(MOST_FLOWS)}]
    minute = moment.traffic.read(60)
    assert (minute.begin, minute.end) == (END - 60, pytest.approx(END))
    assert minute.seconds == pytest.approx(60)
    assert total(minute.tallies.values()).connections == 3
    bars = moment.traffic.history(lambda _: True)
    assert [each.begin for each in bars] == list(range(END - 300, END, 20))
    assert (bars[0], bars[-2]) == ((END - 300, 1, 0), (END - 40, 2, 1))
    assert nodes(moment) == {"node1": ("answered", 3), "node2": ("answered", 1)}
    assert moment.trouble == ""


def test_nodes_without_an_answer_or_a_history_are_named():
    past, _ = past_of(
        at(5), LostFlows(lost=7, node="node1"), failures={"timed out": {"c"}, NO_AGENT: {"d"}}
    )
    moment = past.at(END, ["node1", "node2", "d"])
    assert nodes(moment) == {"node1": ("answered", 1), "node2": ("empty", 0), "c": ("silent", 0)}
    assert [each["why"] for each in moment.nodes] == [
        "timed out",
        "",
        "has kept no flow of this time: it may have no history from then",
    ]
    assert [each["lost"] for each in moment.nodes] == [0, 7, 0]


def test_flows_that_cannot_be_are_not_counted():
    odd = at(5)
    odd.verdict = "vanished"
    never = at(5)
    never.time = "2026-02-30T00:00:00.000000000Z"
    moment = past_of(odd, never)[0].at(END, [])
    assert [each["unreadable"] for each in moment.nodes] == [2]


def test_of_too_many_flows_the_last_are_counted_over_their_own_time():
    found = [at(30 - number % 30) for number in range(MOST_FLOWS)]
    moment = past_of(*found, said=["not through the relay"])[0].at(END, [])
    assert moment.traffic.read(300).seconds == pytest.approx(30)
    assert moment.trouble == (
        "not through the relay; there are more than 20,000 flows: only the last ones are counted"
    )


def test_until_now_is_asked_without_an_end():
    past, agents = past_of(now=END + 10.0)
    past.at(END, [])
    assert "until" not in agents.asked[0]


@pytest.mark.parametrize("until", [int(NOW) + 20, int(NOW) - 24 * 3600, 20])
def test_only_the_last_day_is_asked(until):
    past, agents = past_of()
    with pytest.raises(ConfigError, match=r"^until: a time in the last 24 hours"):
        past.at(until, [])
    assert not agents.asked


def test_a_window_is_kept_for_a_minute_and_only_a_few():
    agents, now = Agents(), [NOW]
    past = Past(agents, lambda: now[0])
    for until in (END, END, END + 20, END + 40, END + 60):
        past.at(until, [])
    assert len(agents.asked) == 4
    past.at(END + 80, [])
    past.at(END, [])
    assert len(agents.asked) == 6
    now[0] += 61
    past.at(END, [])
    assert len(agents.asked) == 7


def test_what_cannot_be_asked_is_not_kept():
    def fail(_):
        raise QueryError("no node answers")

    past = Past(fail, lambda: NOW)
    for _ in range(2):
        with pytest.raises(QueryError, match="no node answers"):
            past.at(END, [])


def test_the_page_shows_and_explains_the_past():
    now = datetime.now(UTC).timestamp()
    until = datetime.fromtimestamp(now // 60 * 60 - 3600, UTC).isoformat()
    made = at(0, client="shop/old-0")
    made.time = f"{datetime.fromtimestamp(now // 60 * 60 - 3610, UTC):%Y-%m-%dT%H:%M:%S}.000000000Z"
    traffic = EdgeTraffic()
    traffic.add(of_node("node1", flow(client="shop/new-0")))
    pages = pages_of(traffic, Following(traffic, dict), flows=Agents(made))

    def clients(**given):
        return [row["client"]["name"] for row in pages["view"]({"group": "pod", **given})["rows"]]

    assert (clients(), clients(until=until)) == (["shop/new-0"], ["shop/old-0"])
    line = pages["line"]({"until": until})
    (kept,) = line["flows"]
    assert (kept["flow"].client.pod, line["active_why"]) == ("shop/old-0", "only known of now")
    asked = {"flow": str(kept["number"]), "until": until}
    assert pages["explain"](asked)["command"].startswith(
        f"ebpflb explain --at {made.time} shop/old-0 "
    )


def test_a_flow_that_is_counted_again_is_explained_by_its_id():
    now = [NOW]
    until = datetime.fromtimestamp(END, UTC).isoformat()
    agents = Agents(at(5, client="shop/late-0", id="1f-2"))
    traffic = EdgeTraffic()
    following = Following(traffic, dict)
    pages = pages_of(traffic, following, flows=agents, clock=lambda: now[0])
    (kept,) = pages["line"]({"until": until})["flows"]
    # A minute later, a node answers that was silent.
    now[0] += 61
    agents.heard = Heard([at(9, "node2", client="shop/early-0", id="1f-1"), *agents.heard.found])
    asked = {"flow": str(kept["number"]), "id": kept["flow"].id, "until": until}
    assert " shop/late-0 " in pages["explain"](asked)["command"]
    with pytest.raises(ConfigError, match="no longer kept"):
        pages["explain"]({**asked, "id": "1f-3"})
