# SPDX-License-Identifier: Apache-2.0
"""Maps, programs and links of the running kernel through libbpf, and a sync on such maps."""

import os
from collections.abc import Callable, Iterator
from errno import E2BIG, EEXIST, EINVAL
from pathlib import Path
from struct import pack

import pytest

from ebpflb.dataplane import libbpf, libc
from ebpflb.dataplane.counters import Counts, read_backends
from ebpflb.dataplane.expire import Expiry
from ebpflb.dataplane.maps import KernelMap, MapSet, open_maps
from ebpflb.dataplane.memory import SPECS
from ebpflb.dataplane.quiesce import membarrier
from ebpflb.dataplane.structs import Conntrack, CtState, Settings
from ebpflb.dataplane.sync import Sync
from ebpflb.dataplane.uapi import AttachFlag, AttachType, Exist, LinkType, MapType, ProgType
from ebpflb.errors import MapError, PinError
from ebpflb.model.plan import FrontendKey, FrontendType
from tests.unit.dataplane.desired import backends, by_service, frontend, key, named
from tests.unit.dataplane.programs import look_up, offer_of
from tests.unit.dataplane.test_expire import CLIENT, POD, VIP, flow_tuple
