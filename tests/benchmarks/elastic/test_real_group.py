"""A control group of version 2 as the kernel has it; skipped where this process may make none that counts memory."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from benchmarks.support.bundles import CHECKOUT

MB = 1_000_000
# In a process of its own, which stays in the group until it ends.
SCRIPT = """
import json, pathlib, subprocess, sys
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
    from benchmarks.elastic.single import answers_within
    bundle, inputs = pathlib.Path("tests/contract/bundle"), pathlib.Path(sys.argv[1])
    answers = answers_within(bundle, inputs, 60_000_000, beside=limit.folder)
    group = limit.folder.parent / "pathweave-elastic-single"
    group.mkdir()
    child = [sys.executable, "-c", sys.argv[2], str(group)]
    ended = [subprocess.run([*child, str(size)]).returncode for size in (10_000_000, 200_000_000)]
    group.rmdir()
    single = {"answers": answers, "ended": ended}
    print(json.dumps({"own": own, "name": memory.name, "grown": grown, "rooms": rooms, **single}))
else:
    print(json.dumps({"reason": limit.reason}))
"""
CHILD = """
import os, pathlib, sys
from benchmarks.elastic.single import _limit_group

group = pathlib.Path(sys.argv[1])
(group / "cgroup.procs").write_text(str(os.getpid()))
_limit_group(group, 50_000_000)
held = bytearray(b"x") * int(sys.argv[2])
"""


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """What a process in the group reads."""
    inputs = tmp_path_factory.mktemp("single") / "inputs.npy"
    np.save(inputs, np.zeros((1, 3, 2, 2), np.float32))
    command = [sys.executable, "-c", SCRIPT, str(inputs), CHILD]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60, check=True)
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


def test_the_single_model_answers_in_a_wide_group(measured):
    assert measured["answers"]


def test_a_process_is_ended_that_takes_more_than_its_group_may(measured):
    assert measured["ended"] == [0, -9]
