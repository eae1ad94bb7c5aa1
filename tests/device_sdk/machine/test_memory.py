from __future__ import annotations

import mmap
import os

import pytest

from device_sdk.machine import (
    machine_bytes,
    mapped_bytes,
    memory_bytes,
    memory_groups,
    peak_resident_bytes,
    resident_bytes,
)

linux = pytest.mark.skipif(not os.path.exists("/proc/self/status"), reason="needs Linux")


@pytest.fixture
def root(tmp_path):
    """A machine with 8 MB of memory whose processes are in the group /app of both versions."""
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemTotal:       8192 kB\nMemAvailable:    100 kB\n")
    (tmp_path / "proc/self/cgroup").write_text("9:memory:/app\n0::/app\n")
    return tmp_path


def group(root, folder, **files):
    place = root / "sys/fs/cgroup" / folder
    place.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (place / f"memory.{name}").write_text(f"{text}\n")


def test_without_limits_it_is_the_machines(root):
    assert memory_bytes(root) == machine_bytes(root) == 8 << 20
    group(root, "app", max="max", high="max")
    assert memory_bytes(root) == 8 << 20


def test_the_smallest_limit_of_version_2_counts(root):
    group(root, "app", max=5000, high="max")
    assert memory_bytes(root) == 5000
    group(root, "app", high=4000)
    assert memory_bytes(root) == 4000
    group(root, "", max=3000)
    assert memory_bytes(root) == 3000


def test_a_limit_of_version_1_counts(root):
    group(root, "memory/app", limit_in_bytes=9223372036854771712)
    assert memory_bytes(root) == 8 << 20
    group(root, "memory/app", limit_in_bytes=6000)
    assert memory_bytes(root) == 6000
    group(root, "memory", limit_in_bytes=2000)
    assert memory_bytes(root) == 2000


def test_a_limit_above_the_machine_is_none(root):
    group(root, "app", max=1 << 40)
    assert memory_bytes(root) == 8 << 20


@pytest.mark.parametrize("text", ["", "much", "-1", "0"])
def test_an_odd_limit_is_none(root, text):
    group(root, "app", max=text)
    assert memory_bytes(root) == 8 << 20


def test_use_leaves_out_what_the_kernel_can_drop(root):
    group(root, "memory/app", limit_in_bytes=9000, usage_in_bytes=5000, stat="inactive_file 1\ntotal_inactive_file 700")
    [found] = memory_groups(root)
    assert (found.limit_bytes(), found.used_bytes()) == (9000, 4300)
    group(root, "app", max=9000, current=5000, stat="inactive_file 300")
    [found] = memory_groups(root)
    assert (found.limit_bytes(), found.used_bytes()) == (9000, 4700)


def test_this_machine_states_its_memory():
    assert memory_bytes() is None or memory_bytes() > 100_000_000


@linux
def test_resident_memory_grows_with_what_is_written_and_its_peak_stays():
    before = resident_bytes()
    with mmap.mmap(-1, 30_000_000) as held:  # the heap may have room from before
        held.write(b"x" * len(held))
        grown = resident_bytes()
    assert grown - before > 20_000_000
    assert peak_resident_bytes() > 0.99 * grown  # the kernel counts both a little late
    assert mapped_bytes() > grown
    assert resident_bytes(os.getpid()) > 0


@linux
def test_a_process_that_is_gone_has_none():
    assert resident_bytes(2**22 + 1) is None
