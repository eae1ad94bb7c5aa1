from __future__ import annotations

import os
import subprocess
import sys

import pytest

from device_sdk.machine import usable_cores

HERE = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
several = pytest.mark.skipif(HERE < 2, reason="needs two cores")


def unified(root, path="app", *, member="0::/app\n", **files):
    return group(root, f"sys/fs/cgroup/{path}", member, files)


def group(root, folder, member, files):
    (root / "proc/self").mkdir(parents=True, exist_ok=True)
    (root / "proc/self/cgroup").write_text(member)
    (root / folder).mkdir(parents=True, exist_ok=True)
    for name, text in files.items():
        (root / folder / name.replace("__", ".")).write_text(f"{text}\n")


def test_without_control_groups_the_affinity_counts(tmp_path):
    assert usable_cores(tmp_path) == HERE


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_a_pinned_process_counts_its_own_cores():
    code = (
        "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); "
        "from device_sdk.machine import usable_cores; print(usable_cores())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "1"


@several
@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", HERE), ("100000 100000", 1), ("50000 100000", 1), ("150000 100000", 2), ("99999999 100000", HERE)],
)
def test_a_quota_of_version_2_limits_the_cores_rounded_up(tmp_path, quota, cores):
    unified(tmp_path, cpu__max=quota)
    assert usable_cores(tmp_path) == cores


@several
@pytest.mark.parametrize("mount", ["cpu", "cpu,cpuacct"])
@pytest.mark.parametrize(("quota", "cores"), [("-1", HERE), ("100000", 1), ("120000", 2)])
def test_a_quota_of_version_1_limits_the_cores(tmp_path, mount, quota, cores):
    files = {"cpu__cfs_quota_us": quota, "cpu__cfs_period_us": "100000"}
    group(tmp_path, f"sys/fs/cgroup/{mount}/docker/a", "5:cpu,cpuacct:/docker/a\n0::/\n", files)
    assert usable_cores(tmp_path) == cores


@several
def test_the_quota_of_a_group_above_counts_as_well(tmp_path):
    unified(tmp_path, "slice", cpu__max="100000 100000")
    unified(tmp_path, "slice/app", member="0::/slice/app\n", cpu__max="max 100000")
    assert usable_cores(tmp_path) == 1


@several
@pytest.mark.parametrize("member", ["0::/docker/a\n", "0::/\n"], ids=["the host's path", "a path of its own"])
def test_inside_a_container_the_mount_is_the_group(tmp_path, member):
    unified(tmp_path, "", member=member, cpu__max="100000 100000")
    assert usable_cores(tmp_path) == 1


@pytest.mark.parametrize("text", ["", "lots 100000", "100000", "100000 0", "-3 100000", "\0"])
def test_an_odd_quota_limits_nothing(tmp_path, text):
    unified(tmp_path, cpu__max=text)
    assert usable_cores(tmp_path) == HERE


def test_a_group_outside_the_visible_tree_limits_nothing(tmp_path):
    unified(tmp_path, "", member="0::/../other\n", cpu__max="100000 100000")
    assert usable_cores(tmp_path) == HERE
