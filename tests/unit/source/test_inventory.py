# SPDX-License-Identifier: Apache-2.0
"""The union of all files: differences, and objects that several files define."""

from hypothesis import given
from hypothesis import strategies as st

from ebpflb.model.objects.kinds import ApiObject, ObjectKey, key_of
from ebpflb.source.manifest import Inventory, Objects
from tests.builders import node, service, service_port

OLD, NEW = service(), service("web", service_port("10.96.0.99"))
KEY = key_of(OLD)


def holding(*items: ApiObject) -> Objects:
    return {key_of(item): item for item in items}


def test_new_objects_are_upserts_in_the_order_of_files():
    inventory = Inventory()
    inventory.put("b.yaml", holding(node(), OLD))
    assert inventory.take() == ((node(), OLD), ())
    assert inventory.take() == ((), ())


def test_only_what_differs_is_reported():
    inventory = Inventory()
    inventory.put("a.yaml", holding(OLD, node()))
    inventory.take()
    inventory.put("a.yaml", holding(NEW, node()))
    assert inventory.take() == ((NEW,), ())
    inventory.put("a.yaml", holding(node()))
    assert inventory.take() == ((), (KEY,))


def test_what_comes_and_goes_in_between_is_not_reported():
    inventory = Inventory()
    inventory.put("a.yaml", holding(OLD))
    inventory.put("a.yaml", {})
    assert inventory.take() == ((), ())


def test_an_object_that_moves_to_another_file_stays():
    inventory = Inventory()
    inventory.put("a.yaml", holding(OLD))
    inventory.take()
    inventory.put("a.yaml", {})
    inventory.put("b.yaml", holding(OLD))
    assert inventory.take() == ((), ())


def test_the_last_file_counts_and_it_is_said_once():
    inventory = Inventory()
    assert inventory.put("b.yaml", holding(NEW)) == []
    told = inventory.put("a.yaml", holding(OLD))
    assert told == ["Service default/web is in a.yaml, b.yaml: using b.yaml"]
    assert inventory.take() == ((NEW,), ())
    assert inventory.put("a.yaml", holding(service("web", service_port("10.96.0.7")))) == []
    assert inventory.take() == ((), ())


def test_the_other_file_takes_over_when_the_last_one_goes():
    inventory = Inventory()
    inventory.put("a.yaml", holding(OLD))
    inventory.put("b.yaml", holding(NEW))
    inventory.take()
    inventory.put("b.yaml", {})
    assert inventory.take() == ((OLD,), ())
    inventory.put("a.yaml", {})
    assert inventory.take() == ((), (KEY,))


FILES = st.sampled_from(["a.yaml", "b.yaml", "c.yaml"])
# One Service and one Node at most.
CONTENTS = st.lists(
    st.sampled_from([OLD, NEW, node(), node(zone="zone-1")]), max_size=2, unique_by=type
)


@given(st.lists(st.tuples(FILES, CONTENTS, st.booleans()), max_size=12))
def test_the_differences_add_up_to_the_content_of_the_last_files(steps):
    inventory = Inventory()
    files: dict[str, Objects] = {}
    known: dict[ObjectKey, ApiObject] = {}
    for file, items, take in [*steps, ("a.yaml", [], True)]:
        files[file] = holding(*items)
        inventory.put(file, files[file])
        if take:
            upserts, removals = inventory.take()
            assert not [item for item in upserts if known.get(key_of(item)) == item]
            known.update(holding(*upserts))
            for key in removals:
                del known[key]
            wanted: Objects = {}
            for name in sorted(files):
                wanted.update(files[name])
            assert known == wanted
