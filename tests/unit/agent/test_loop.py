# SPDX-License-Identifier: Apache-2.0
import threading
import time
from errno import ENOENT

import pytest

from ebpflb.agent.interface import ExpiryStep
from ebpflb.agent.loop import (
    COLLECT_SECONDS,
    COMPARE_SECONDS,
    EXPIRE_SECONDS,
    NO_ROOM_SECONDS,
    PINS_SECONDS,
    REPAIR_SECONDS,
    ROOM_SECONDS,
    STEP_SECONDS,
    Periods,
    Wakeup,
)
from ebpflb.errors import AttachError, LoadError, ProbeError
from ebpflb.model.objects.kinds import ApiObject
from ebpflb.model.service import ServiceCidr
from ebpflb.observe.health import PATIENCE_SECONDS
from tests.builders import endpoint, endpoint_slice, node, service, service_port
from tests.unit.agent.conftest import LATE, OTHER_SLICE, SLICE, WEB, Bench
from tests.unit.agent.node import MAP_ERROR

SMALL = {"lb_slots": 2}


def test_changes_gather_while_the_shortest_period_between_syncs_has_not_passed():
    bench = Bench(periods=Periods(min_sync=5))
    bench.say(WEB, SLICE)
    bench.turn()
    bench.say(OTHER_SLICE)
    assert not any(call.startswith("apply") for call in bench.turn(4))
    assert any(call.startswith("apply") for call in bench.turn(1))
    assert bench.report()["in_sync"] is True


def test_nothing_is_programmed_before_the_source_has_spoken(bench):
    bench.agent.tell(Wakeup.NETWORK)
    assert bench.turn(10_000) == []
    assert bench.report()["in_sync"] is False


def test_the_first_event_starts_the_node_even_without_objects(bench):
    bench.say()
    assert bench.turn() == ["start", "follow"]
    assert bench.first_syncs == 1
    assert bench.report()["in_sync"] is True


def test_a_change_is_written_at_once_and_alone(served):
    served.say(OTHER_SLICE)
    assert served.turn() == ["apply default/web"]
    assert served.node.served() == {"web": ["10.1.0.2"]}
    assert served.first_syncs == 1


def test_events_that_have_come_meanwhile_are_one_write(served):
    served.say(service("a"))
    served.say(OTHER_SLICE)
    served.say(gone=(service("a"),))
    assert served.turn() == ["apply default/web"]


def test_what_cancels_out_or_does_not_matter_is_no_write(served):
    served.say(OTHER_SLICE)
    served.say(SLICE)
    served.say(node("node-z", zone="z"))
    assert served.turn() == []
    assert served.samples()["kubeproxy_sync_proxy_rules_endpoint_changes_pending"] == 0
    assert served.report()["in_sync"] is True


def test_a_removed_service_is_gone(served):
    served.say(gone=(WEB,))
    assert served.turn() == ["apply default/web"]
    assert served.node.served() == {}
    assert served.report()["services"] == 0


def test_what_an_earlier_run_left_stays_until_everything_could_be_read(bench, make_bench):
    earlier = make_bench()
    earlier.say(WEB, SLICE)
    earlier.turn()
    bench.node.maps, bench.node.sync = earlier.node.maps, earlier.node.sync
    broken = {"/m/web.yaml": "/m/web.yaml: broken"}
    bench.say(LATE, errors=broken)
    assert bench.turn() == ["start", "follow"]
    assert bench.node.served() == {"late": [], "web": ["10.1.0.1"]}
    bench.turn(COMPARE_SECONDS)
    bench.turn(STEP_SECONDS)
    assert "web" in bench.node.served()
    bench.say(errors={})
    bench.turn()
    assert bench.node.served() == {"late": []}
    bench.say(errors=broken)
    bench.say(errors={})
    assert "resync" not in bench.turn()


def test_a_failed_write_is_repeated_as_a_comparison_with_growing_waits(served, caplog):
    served.node.failures["apply default/web"] = [MAP_ERROR]
    served.node.failures["resync"] = [MAP_ERROR]
    served.say(OTHER_SLICE)
    assert served.turn() == ["apply default/web"]
    assert served.report()["in_sync"] is False
    served.say(LATE)
    assert served.turn(0.05) == []
    assert served.turn(0.06) == ["resync"]
    assert served.turn(0.15) == []
    assert served.turn(0.06) == ["resync"]
    assert served.node.served() == {"late": [], "web": ["10.1.0.2"]}
    assert served.report()["in_sync"] is True
    assert served.samples()["ebpflb_sync_failures_total"] == 2
    # start, apply, and two comparisons, of which one failed.
    assert served.samples()["kubeproxy_sync_proxy_rules_duration_seconds_count"] == 4
    assert caplog.text.count("sync failed") == 2


def test_after_a_success_the_waits_start_over(served):
    for _ in range(2):
        served.node.failures["apply default/web"] = [MAP_ERROR]
        served.say(OTHER_SLICE)
        served.turn()
        assert "resync" in served.turn(0.11)
        served.say(SLICE)
        served.turn()


def test_a_failed_start_is_repeated(bench):
    bench.node.failures["start"] = [MAP_ERROR]
    bench.say(WEB, SLICE)
    assert bench.turn() == ["start"]
    assert bench.turn(0.2) == ["start", "follow"]
    assert bench.node.served() == {"web": ["10.1.0.1"]}


def test_what_cannot_be_repeated_ends_the_agent(bench):
    bench.node.failures["start"] = [LoadError("rejected")]
    bench.say(WEB)
    with pytest.raises(LoadError, match="rejected"):
        bench.turn()


def test_while_a_write_waits_for_its_repetition_nothing_else_is_done(served):
    served.node.failures["apply default/web"] = [MAP_ERROR]
    served.say(OTHER_SLICE)
    served.turn(COLLECT_SECONDS)
    served.agent.tell(Wakeup.NETWORK)
    assert served.turn(0.05) == []


def test_a_wait_without_success_is_unhealthy(served):
    served.node.failures["apply default/web"] = [MAP_ERROR]
    served.node.failures["resync"] = [MAP_ERROR] * 20
    served.say(OTHER_SLICE)
    served.turn()
    for _ in range(20):
        served.turn(PATIENCE_SECONDS / 20)
    assert served.report()["healthy"] is False


def test_a_service_that_does_not_fit_makes_room(make_bench):
    bench = make_bench(SMALL)
    pods = [endpoint(f"10.1.0.{last}") for last in range(1, 5)]
    bench.say(WEB, endpoint_slice("web-1", *pods))
    assert bench.turn() == ["start", "grow", "follow"]
    assert bench.report()["refused"] == {}
    assert bench.report()["in_sync"] is True
    assert len(bench.node.served()["web"]) == 4


def many_services() -> list[ApiObject]:
    return [
        each
        for n in range(20)
        for each in (
            service(f"web-{n}", service_port(f"10.96.1.{n}")),
            endpoint_slice(f"web-{n}-1", endpoint(), service=f"web-{n}"),
        )
    ]


def test_services_that_do_not_fit_are_logged_in_one_line_after_room_was_sought(make_bench, caplog):
    bench = make_bench(SMALL)
    bench.node.failures["grow"] = [LoadError("no memory")]
    bench.say(*many_services())
    assert bench.turn() == ["start", "grow", "follow"]
    (line,) = (each for each in caplog.records if "not fit" in each.getMessage())
    refused = sorted(bench.report()["refused"])
    assert line.ebpflb_fields == {
        "count": len(refused),
        "services": f"{', '.join(refused[:3])}, ...",
    }


def test_services_that_fit_once_there_is_room_are_not_logged(make_bench, caplog):
    bench = make_bench({"lb_slots": 10})
    bench.say(*many_services())
    assert bench.turn() == ["start", "grow", "follow"]
    assert bench.report()["refused"] == {}
    assert "fit" not in caplog.text


def test_a_service_that_never_fits_does_not_hold_up_the_others(make_bench):
    bench = make_bench(SMALL)
    bench.node.failures["grow"] = [LoadError("no memory")] * 9
    pods = [endpoint(f"10.1.0.{last}") for last in range(1, 5)]
    bench.say(WEB, endpoint_slice("web-1", *pods))
    assert bench.turn() == ["start", "grow", "follow"]
    bench.say(LATE)
    assert bench.turn() == ["apply default/late"]
    report = bench.report()
    assert list(report["refused"]) == ["default/web"]
    assert report["in_sync"] is False
    assert bench.turn(0.2) == ["resync", "grow"]
    bench.say(gone=(WEB,))
    bench.turn()
    assert bench.report()["refused"] == {}
    assert bench.report()["in_sync"] is True


def test_a_service_that_went_while_everything_waited_is_refused_no_more(make_bench):
    bench = make_bench(SMALL)
    bench.node.failures["grow"] = [LoadError("no memory")]
    pods = [endpoint(f"10.1.0.{last}") for last in range(1, 5)]
    bench.say(WEB, endpoint_slice("web-1", *pods))
    bench.turn()
    bench.say(endpoint_slice("web-1", *pods, endpoint("10.1.0.9")))
    assert bench.turn() == ["apply default/web"]
    bench.node.failures["expire"] = [MAP_ERROR]
    bench.turn(EXPIRE_SECONDS)
    bench.say(gone=(WEB,))
    assert "resync" in bench.turn(1)
    assert bench.report()["refused"] == {}


def test_what_was_replaced_is_freed_later_after_the_kernel_was_waited_for(served):
    assert served.turn(COLLECT_SECONDS) == ["prepare"]
    assert served.turn() == ["collect"]
    assert served.turn(COLLECT_SECONDS) == []


def test_a_write_meanwhile_is_freed_in_a_second_round(served):
    served.turn(COLLECT_SECONDS - 0.5)
    served.say(OTHER_SLICE)
    served.turn()
    used = served.node.sync.usage()["lb_backends"].used
    served.turn(0.5)
    assert served.turn() == ["collect"]
    assert served.node.sync.usage()["lb_backends"].used == used
    served.turn(COLLECT_SECONDS)
    assert served.turn() == ["collect"]
    assert served.node.sync.usage()["lb_backends"].used == used - 1


def test_flows_are_expired_in_steps_with_pauses_between_passes(served):
    served.node.expired = [ExpiryStep(3, finished=False), ExpiryStep(4, finished=True)]
    assert "expire" in served.turn(EXPIRE_SECONDS)
    served.turn()
    assert served.turn(STEP_SECONDS) == ["expire"]
    assert "expire" not in served.turn(EXPIRE_SECONDS - 0.1)
    assert served.turn(0.2) == ["expire"]
    assert served.samples()["ebpflb_conntrack_expired_total"] == 7


def test_steps_of_expiry_that_take_long_are_rarer(served, monkeypatch):
    def expire() -> ExpiryStep:
        served.clock.now += 0.0015
        served.node.calls.append("expire")
        return ExpiryStep(0, finished=False)

    monkeypatch.setattr(served.node, "expire", expire)
    assert "expire" in served.turn(EXPIRE_SECONDS)
    assert "expire" not in served.turn(0.049)
    assert "expire" in served.turn(0.002)


def test_the_network_is_followed_when_it_changes_and_looked_at_now_and_then(served):
    served.agent.tell(Wakeup.NETWORK)
    served.agent.tell(Wakeup.NETWORK)
    assert served.turn() == ["follow"]
    assert "repair" in served.turn(REPAIR_SECONDS)


def test_a_device_that_cannot_be_served_is_shown_and_tried_again(served, caplog):
    caplog.set_level("INFO")
    served.node.attach_errors = {"eth0": AttachError("device 2: busy")}
    served.agent.tell(Wakeup.NETWORK)
    served.turn()
    assert served.report()["attach_errors"] == {"eth0": "device 2: busy"}
    assert served.turn(0.11) == ["repair"]
    assert served.turn(0.11) == []
    served.node.attach_errors = {}
    assert served.turn(0.1) == ["repair"]
    assert served.report()["attach_errors"] == {}
    assert caplog.text.count("not served: device 2: busy") == 1
    assert "served again" in caplog.text
    served.node.attach_errors = {"eth0": AttachError("device 2: busy")}
    served.agent.tell(Wakeup.NETWORK)
    served.turn()
    assert served.turn(0.11) == ["repair"]


def test_netlink_that_fails_is_an_attach_error(served):
    served.node.failures["follow"] = [ProbeError("no netlink")]
    served.agent.tell(Wakeup.NETWORK)
    served.turn()
    assert served.report()["attach_errors"] == {"network": "no netlink"}


def test_addresses_that_could_not_be_written_are_written_again(served):
    served.node.failures["follow"] = [MAP_ERROR]
    served.agent.tell(Wakeup.NETWORK)
    assert served.turn() == ["follow"]
    assert served.turn(0.11) == ["resync", "follow"]


def test_room_that_could_not_be_filled_is_compared_again(make_bench):
    bench = make_bench(SMALL)
    bench.node.failures["grow"] = [MAP_ERROR]
    pods = [endpoint(f"10.1.0.{last}") for last in range(1, 5)]
    bench.say(WEB, endpoint_slice("web-1", *pods))
    assert bench.turn() == ["start", "grow"]
    assert bench.report()["in_sync"] is False
    assert bench.turn(0.11) == ["resync", "grow", "follow"]
    assert bench.report()["in_sync"] is True


def test_addresses_that_do_not_fit_make_room(make_bench):
    bench = make_bench(SMALL)
    bench.node.attach_errors = {"lb_addrs": type(MAP_ERROR)("lb_addrs", "update", 7)}
    bench.say()
    assert bench.turn() == ["start", "follow", "grow"]


def test_pins_that_somebody_has_removed_are_noticed_within_seconds(served):
    assert "repair" not in served.turn(PINS_SECONDS)
    served.node.pins_are_lost = True
    assert "repair" not in served.turn(PINS_SECONDS / 2)
    assert "repair" in served.turn(PINS_SECONDS / 2)
    served.node.pins_are_lost = False
    assert "repair" not in served.turn(PINS_SECONDS)


def test_a_thread_that_fails_ends_the_loop(served):
    served.agent.tell(ZeroDivisionError("in a thread"))
    with pytest.raises(ZeroDivisionError):
        served.agent.run()


def test_running_ends_on_request_and_waits_in_between(bench):
    thread = threading.Thread(target=bench.agent.run)
    thread.start()
    bench.say(WEB, SLICE)
    deadline = time.monotonic() + 60
    while "start" not in bench.node.calls and time.monotonic() < deadline:
        time.sleep(0.01)
    bench.agent.tell(Wakeup.STOP)
    thread.join(60)
    assert not thread.is_alive()
    assert bench.node.served() == {"web": ["10.1.0.1"]}


def test_ranges_of_services_are_in_force_after_the_services(bench):
    bench.say(WEB, SLICE, ServiceCidr("kubernetes", ("10.96.0.0/12",)))
    assert bench.turn() == ["start", "ranges 10.96.0.0/12", "follow"]
    assert bench.turn() == []


def test_ranges_are_written_when_they_change_and_are_no_reason_to_plan(served):
    served.say(ServiceCidr("kubernetes", ("10.96.0.0/12",)))
    assert served.turn() == ["ranges 10.96.0.0/12"]
    assert served.report()["in_sync"] is True
    served.say(gone=(ServiceCidr("kubernetes", ()),))
    assert served.turn() == ["ranges "]


def test_no_ranges_are_written_too_as_an_earlier_run_may_have_had_some(served):
    assert served.node.service_ranges == ()


def test_ranges_that_could_not_be_written_are_written_again(served):
    served.node.failures["ranges 10.96.0.0/12"] = [MAP_ERROR]
    served.say(ServiceCidr("kubernetes", ("10.96.0.0/12",)))
    served.turn()
    assert "ranges 10.96.0.0/12" in served.turn(1)


def test_the_addresses_of_the_node_object_are_known_before_anything_is_served(bench):
    bench.say(node(addresses=("192.0.2.1", "192.0.2.2")))
    assert bench.turn() == ["node 192.0.2.1", "start", "follow"]
    assert bench.turn() == []


def test_other_addresses_of_the_node_object_are_followed(served):
    served.say(node(addresses=("192.0.2.1",)))
    # Source ranges may name the node's address, so Services are planned again.
    assert served.turn() == ["node 192.0.2.1", "apply default/web", "follow"]
    served.say(node(zone="zone-1", addresses=("192.0.2.1",)))
    assert not any(call.startswith(("node", "follow")) for call in served.turn())
    served.say(gone=(node(),))
    assert {"node ", "follow"} <= set(served.turn())


def test_flows_get_more_room_as_soon_as_a_table_is_crowded(served):
    assert "grow flows" not in served.turn(ROOM_SECONDS)
    served.node.is_crowded = True
    assert "grow flows" not in served.turn(ROOM_SECONDS / 2)
    assert "grow flows" in served.turn(ROOM_SECONDS / 2)
    assert served.node.served() == {"web": ["10.1.0.1"]}


def test_room_for_flows_that_cannot_be_made_is_tried_again_later(served, caplog):
    served.turn(ROOM_SECONDS)
    served.node.is_crowded = True
    served.node.failures["grow flows"] = [LoadError("no memory")]
    assert "grow flows" in served.turn(ROOM_SECONDS)
    assert "cannot enlarge the maps: no memory" in caplog.text
    assert "grow flows" not in served.turn(NO_ROOM_SECONDS / 2)
    assert "grow flows" in served.turn(NO_ROOM_SECONDS / 2)


def test_pins_that_are_removed_while_maps_grow_do_not_end_the_agent(served, caplog):
    served.turn(ROOM_SECONDS)
    served.node.is_crowded = True
    gone = FileNotFoundError(ENOENT, "No such file or directory", "/sys/fs/bpf/ebpflb/links")
    served.node.failures["grow flows"] = [gone]
    assert "grow flows" in served.turn(ROOM_SECONDS)
    assert "sync failed" in caplog.text
    served.node.pins_are_lost = True
    assert "resync" in served.turn(0.11)
    assert "repair" in served.turn(PINS_SECONDS)
    assert served.report()["in_sync"] is True
