# SPDX-License-Identifier: Apache-2.0
import json
import os
import tarfile

import pytest

SECRETS = ("hunter2", "s3cr3t", "eyJhbGciOiJSUzI1NiJ9")
LOG = f"""starts
Authorization: Bearer {SECRETS[0]}
password="{SECRETS[1]}", next
{SECRETS[2]}.payload.signature
ends
"""
COMMANDS = ("--version", "status", "doctor", "maps list", "maps dump", "flows")


@pytest.fixture
def two(nodes):
    nodes.add("a", "b")
    for name in "ab":
        for command in COMMANDS:
            nodes.say(name, command, f"{name} {command}")
        nodes.objects.texts[f"/api/v1/namespaces/kube-system/pods/ebpflb-{name}/log"] = LOG
    nodes.objects.texts["/version"] = json.dumps({"gitVersion": "v1.36.3"})
    lists = nodes.objects.lists
    for each in lists["/api/v1/pods"]:
        each["spec"]["containers"][0]["env"] = [{"name": "X", "value": SECRETS[0]}]
    lists["/api/v1/namespaces/kube-system/pods"] = lists["/api/v1/pods"]
    annotations = {"kubectl.kubernetes.io/last-applied-configuration": SECRETS[1]}
    lists["/api/v1/services"] = [
        {
            "metadata": {
                "name": "web",
                "namespace": "default",
                "annotations": {**annotations, "ebpflb.io/dsr": "true"},
                "managedFields": [SECRETS[0]],
            },
            "spec": {"clusterIP": "10.96.0.10"},
        }
    ]
    lists["/apis/discovery.k8s.io/v1/endpointslices"] = []
    return nodes


def contents(path):
    with tarfile.open(path) as tar:
        found = {}
        for member in tar.getmembers():
            assert member.name.startswith("ebpflb-sysdump-")
            file = tar.extractfile(member)
            assert file
            found[member.name.partition("/")[2]] = file.read().decode()
    return found


def test_the_archive_has_what_a_bug_report_needs(two, tmp_path):
    path = tmp_path / "dump.tar.gz"
    done = two.run("sysdump", "--file", str(path))
    assert done.stdout.startswith(f"{path}: ")
    found = contents(path)
    files = ("version.txt", "status.json", "doctor.json", "maps.json", "frontends.json")
    of_nodes = {f"nodes/{node}/{name}" for node in "ab" for name in (*files, "flows.jsonl")}
    assert of_nodes <= found.keys()
    assert found["nodes/b/frontends.json"] == "b maps dump"
    assert "starts\n" in found["nodes/a/agent.log"]
    assert json.loads(found["cluster/version.json"]) == {"gitVersion": "v1.36.3"}
    assert [each["name"] for each in json.loads(found["cluster/nodes.json"])] == ["a", "b"]
    (service,) = json.loads(found["cluster/services.json"])
    assert service["annotations"] == {"ebpflb.io/dsr": "true"}
    assert "10.96.0.10" not in found["cluster/services.json"]
    pods = json.loads(found["cluster/agents-kube-system.json"])
    assert [each["node"] for each in pods] == ["a", "b"]
    assert found["errors.txt"] == ""


def test_it_has_no_secrets(two, tmp_path):
    path = tmp_path / "dump.tar.gz"
    two.run("sysdump", "--file", str(path))
    every = "".join(contents(path).values())
    assert not [secret for secret in SECRETS if secret in every]
    assert "t0k3n" not in every
    assert (
        'Authorization: Bearer (left out)\npassword="(left out)", next\n(left out)\nends' in every
    )


def test_it_is_for_its_owner_alone_and_goes_over_no_other_file(two, tmp_path):
    path = tmp_path / "dump.tar.gz"
    two.run("sysdump", "--file", str(path))
    assert os.stat(path).st_mode & 0o777 == 0o600
    assert f"{path}: File exists" in two.run("sysdump", "--file", str(path), status=1).stderr


def test_what_is_missing_is_named_and_written_down(two, tmp_path):
    path = tmp_path / "dump.tar.gz"
    two.add_without_agent("c")
    two.objects.forbidden["/api/v1/services"] = "services is forbidden: User me cannot list"
    two.fail("b", "doctor", "Error: no root")
    del two.objects.texts["/api/v1/namespaces/kube-system/pods/ebpflb-b/log"]
    done = two.run("sysdump", "--file", str(path), status=1)
    assert "cluster/services.json: RBAC forbids it: User me cannot list" in done.stderr
    assert "b: no log: not found: " in done.stderr
    found = contents(path)
    assert sorted(done.stderr.splitlines()) == sorted(found["errors.txt"].splitlines())
    assert found["nodes/b/doctor.json.stderr"] == "Error: no root"
