"""A control group of version 2 as the kernel has it; skipped where this process may make none that counts memory."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from benchmarks.support.bundles import CHECKOUT

MB = 1_000_000
# In a process of its own, which stays in the group until it ends.
SCRIPT = """
import json, pathlib
from benchmarks.elastic.limits import GroupLimit, find_limit
from device_sdk.errors import MeasurementError
from device_sdk.memory_pressure import CgroupMemory

limit = find_limit()
if isinstance(limit, GroupLimit):
    own = next(line[3:] for line in open("/proc/self/cgroup").read().splitlines() if line.startswith("0::"))
    memory, before = CgroupMemory(), limit.used_bytes()
    held = bytearray(b"x") * 40_000_000
    grown = limit.used_bytes() - before
    high = limit.folder / "memory.high"
    rooms = []
    for extra in (100_000_000, 20_000_000):
        high.write_text(str(int((limit.folder / "memory.current").read_text()) + extra))
        rooms.append(memory.read().available_bytes)
    high.write_text("max")
    print(json.dumps({"own": own, "name": memory.name, "grown": grown, "rooms": rooms}))
else:
    print(json.dumps({"reason": limit.reason}))
"""


@pytest.fixture(scope="module")
def measured():
    """What a process in the group reads."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True
    )
    found = json.loads(done.stdout)
    if "reason" in found:
        pytest.skip(f"no control group of version 2 here: {found['reason']}")
    return found


def test_the_process_is_in_the_group_whose_memory_is_read(measured):
    assert measured["own"].endswith("/pathweave-elastic")
    assert measured["name"].endswith("/pathweave-elastic")


def test_what_the_process_takes_is_counted(measured):
    assert 35 * MB < measured["grown"] < 60 * MB


def test_room_follows_the_limit_as_it_is_changed(measured):
    wide, narrow = measured["rooms"]
    assert 90 * MB < wide < 150 * MB  # page cache that can be dropped counts as free
    assert narrow <= wide - 60 * MB
