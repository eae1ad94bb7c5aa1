from __future__ import annotations

import os

import pytest

from device_sdk.errors import MeasurementError
from device_sdk.memory_pressure import (
    CgroupMemory,
    MemoryReading,
    SystemMemory,
    TightestMemory,
    find_memory_pressure,
)

STALL = "some avg10=12.50 avg60=0.40 avg300=0.00 total=345\nfull avg10=1.00 avg60=0.00 avg300=0.00 total=5\n"
MEMINFO = "MemTotal:       4096 kB\nMemFree:        100 kB\nMemAvailable:   1000 kB\n"


@pytest.fixture
def system(tmp_path):
    """A root with the files of a whole system."""
    (tmp_path / "proc/pressure").mkdir(parents=True)
    (tmp_path / "proc/self").mkdir()
    (tmp_path / "proc/meminfo").write_text(MEMINFO)
    (tmp_path / "proc/pressure/memory").write_text(STALL)
    (tmp_path / "proc/self/cgroup").write_text("4:memory:/other\n0::/slice/app\n")
    return tmp_path


def group(root, path="slice/app", *, mount="sys/fs/cgroup", **files):
    folder = root / mount / path
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (folder / f"memory.{name}").write_text(f"{text}\n")
    return folder


def test_the_system_says_what_is_available_and_how_long_tasks_waited(system):
    assert SystemMemory(system).read() == MemoryReading(1000 * 1024, 0.125)


def test_without_pressure_stall_information_the_stall_is_unknown(system):
    (system / "proc/pressure/memory").unlink()
    assert SystemMemory(system).read() == MemoryReading(1000 * 1024, None)


@pytest.mark.parametrize(
    "text", ["", "MemTotal: 5 kB\n", "MemAvailable: many kB\n", "MemAvailable: -5 kB\n", "\xff\x00"]
)
def test_odd_system_files_are_typed_errors(system, text):
    (system / "proc/meminfo").write_text(text)
    with pytest.raises(MeasurementError):
        SystemMemory(system)


@pytest.mark.parametrize(
    "text", ["", "none\n", "some avg10=lots\n", "some avg10=250.0\n", "some\n", "some avg10=nan\n"]
)
def test_odd_stall_information_is_a_typed_error(system, text):
    (system / "proc/pressure/memory").write_text(text)
    with pytest.raises(MeasurementError):
        SystemMemory(system)


def test_a_group_has_room_up_to_its_limit_and_what_the_page_cache_can_drop(system):
    group(system, max=5000, current=4000, stat="anon 3000\ninactive_file 700", pressure=STALL)
    assert CgroupMemory(system).read() == MemoryReading(1700, 0.125)


def test_the_tightest_group_above_counts(system):
    group(system, max=5000, current=1000)
    group(system, "slice", max=9000, current=8800)
    assert CgroupMemory(system).read() == MemoryReading(200, None)


def test_where_the_kernel_begins_to_throttle_counts_as_a_limit(system):
    group(system, max=5000, current=1000, high=3000)
    assert CgroupMemory(system).read().available_bytes == 2000


def test_version_2_beside_version_1_is_found(system):
    group(system, mount="sys/fs/cgroup/unified", max=5000, current=1000)
    assert CgroupMemory(system).read().available_bytes == 4000


def test_limits_may_come_and_go(system):
    folder = group(system, max="max", current=1000)
    cgroup = CgroupMemory(system)
    with pytest.raises(MeasurementError, match="limits memory"):
        cgroup.read()
    (folder / "memory.max").write_text("1500\n")
    assert cgroup.read().available_bytes == 500
    (folder / "memory.max").write_text("900\n")
    assert cgroup.read().available_bytes == 0


def test_a_group_of_version_1_has_room_up_to_its_limit(system):
    files = {"limit_in_bytes": 5000, "usage_in_bytes": 4000, "stat": "inactive_file 1\ntotal_inactive_file 700"}
    group(system, "other", mount="sys/fs/cgroup/memory", **files)
    group(system, "", mount="sys/fs/cgroup/memory", limit_in_bytes=9223372036854771712, usage_in_bytes=10**12)
    assert CgroupMemory(system).read() == MemoryReading(1700, None)


@pytest.mark.parametrize("lines", ["4:memory:/docker/a\n", "0::/docker/a\n", "0::/\n"])
def test_inside_a_container_the_mount_is_the_group(system, lines):
    (system / "proc/self/cgroup").write_text(lines)
    group(system, "", mount="sys/fs/cgroup/memory", limit_in_bytes=5000, usage_in_bytes=4900)
    group(system, "", max=5000, current=4900)
    assert CgroupMemory(system).read().available_bytes == 100


@pytest.mark.parametrize("lines", ["", "4:memory:/other\n", "0::/../../etc\n", "0::/missing\n"])
def test_without_a_group_that_counts_memory_there_is_none(system, lines):
    group(system, max=5, current=1)
    (system / "proc/self/cgroup").write_text(lines)
    with pytest.raises(MeasurementError):
        CgroupMemory(system)


@pytest.mark.parametrize(
    ("name", "text"), [("max", "much"), ("current", "-3"), ("current", None), ("stat", "inactive_file x")]
)
def test_odd_files_of_a_group_are_typed_errors(system, name, text):
    folder = group(system, max=5000, current=1000)
    cgroup = CgroupMemory(system)
    if text is None:
        (folder / f"memory.{name}").unlink()
    else:
        (folder / f"memory.{name}").write_text(text)
    with pytest.raises(MeasurementError):
        cgroup.read()


def test_of_several_sources_the_least_room_and_the_longest_stall_count(system):
    folder = group(system, max=5000, current=4000, pressure=STALL.replace("12.50", "30.00"))
    found = find_memory_pressure(system)
    assert found.read() == MemoryReading(1000, 0.3)
    assert found.name == f"{folder}, /proc/meminfo"


def test_a_source_that_fails_for_once_is_left_out(system):
    folder = group(system, max=5000, current=4000)
    found = find_memory_pressure(system)
    (folder / "memory.current").write_text("?")
    assert found.read().available_bytes == 1000 * 1024
    (system / "proc/meminfo").unlink()
    with pytest.raises(MeasurementError, match=r"memory\.current says"):
        found.read()
    with pytest.raises(MeasurementError, match="no source"):
        TightestMemory([]).read()


def test_a_system_without_any_of_the_files_says_why(tmp_path):
    with pytest.raises(MeasurementError, match="cannot be read"):
        find_memory_pressure(tmp_path)


@pytest.mark.skipif(not os.path.exists("/proc/meminfo"), reason="needs Linux")
def test_this_system_can_be_read():
    assert find_memory_pressure().read().available_bytes > 0
