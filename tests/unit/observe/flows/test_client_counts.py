# SPDX-License-Identifier: Apache-2.0
from ebpflb.model.address import Protocol
from ebpflb.model.pod import NOBODY, NamedPod
from ebpflb.model.service import ServiceName, ServicePortName
from ebpflb.observe.flows.client_counts import ClientCounts

WEB = ServicePortName("default", "web", "http", Protocol.TCP)
DNS = ServicePortName("kube-system", "dns", "", Protocol.UDP)
BACKUP = NamedPod("jobs/backup-1", "CronJob/backup")


def exists(_: ServiceName) -> bool:
    return True


def samples(counts: ClientCounts) -> dict[tuple[str, ...], float]:
    return {
        tuple(sample.labels.values()): sample.value
        for family in counts.families()
        for sample in family.samples
    }


def test_who_connects_to_what_is_counted():
    counts = ClientCounts(10, exists)
    for name in ("jobs/backup-1", "jobs/backup-2"):
        counts.count(BACKUP._replace(pod=name), WEB, "end")
    counts.count(BACKUP, DNS, "dropped")
    counts.count(NOBODY, WEB, "end")
    counts.count(NOBODY, None, "refused")
    assert samples(counts) == {
        ("jobs", "CronJob/backup", "default", "web", "end"): 2,
        ("jobs", "CronJob/backup", "kube-system", "dns", "dropped"): 1,
        ("", "", "default", "web", "end"): 1,
        ("", "", "", "", "refused"): 1,
    }


def test_there_are_no_more_series_than_wanted():
    counts = ClientCounts(1, exists)
    counts.count(BACKUP, WEB, "end")
    for number in range(100):
        counts.count(NamedPod(f"jobs/a-{number}", f"Job/a-{number}"), WEB, "end")
    counts.count(BACKUP, WEB, "end")
    assert samples(counts) == {
        ("jobs", "CronJob/backup", "default", "web", "end"): 2,
        ("", "other", "", "", "end"): 100,
    }


def test_nothing_is_counted_unless_it_is_wanted():
    counts = ClientCounts(0, exists)
    counts.count(BACKUP, WEB, "end")
    assert list(counts.families()) == []


def test_series_end_with_their_service_and_make_room():
    services = {ServiceName("default", "web")}
    counts = ClientCounts(1, services.__contains__)
    counts.count(BACKUP, WEB, "end")
    assert len(samples(counts)) == 1
    services.clear()
    assert samples(counts) == {}
    services.add(ServiceName("kube-system", "dns"))
    counts.count(BACKUP, DNS, "end")
    assert samples(counts) == {("jobs", "CronJob/backup", "kube-system", "dns", "end"): 1}
