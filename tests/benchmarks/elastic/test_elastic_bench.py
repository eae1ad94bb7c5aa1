from __future__ import annotations

import os

import pytest

from benchmarks.elastic.limits import CapLimit, GroupLimit, find_limit
from benchmarks.elastic.process import Stage

MB = 1_000_000


@pytest.fixture
def root(tmp_path):
    """A system whose own control group counts memory for those below it."""
    own = tmp_path / "sys/fs/cgroup/app"
    own.mkdir(parents=True)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/app\n")
    (own / "cgroup.controllers").write_text("cpu memory\n")
    (own / "cgroup.subtree_control").write_text("memory\n")
    return tmp_path


def test_without_a_group_that_counts_memory_the_cap_is_the_limit(root, tmp_path):
    (root / "sys/fs/cgroup/app/cgroup.controllers").write_text("cpu\n")
    for place in (root, tmp_path / "nothing"):
        found = find_limit(place)
        assert isinstance(found, CapLimit)
        assert "no group of version 2" in found.reason
    assert not (root / "sys/fs/cgroup/app/pathweave-elastic").exists()


def test_a_group_without_the_files_is_removed_again(root):
    assert isinstance(find_limit(root), CapLimit)
    assert not (root / "sys/fs/cgroup/app/pathweave-elastic").exists()


def test_a_group_that_can_be_made_holds_this_process_and_its_limit(root):
    group = root / "sys/fs/cgroup/app/pathweave-elastic"
    group.mkdir()
    for name, text in {"memory.high": "max", "memory.current": str(70 * MB), "cgroup.procs": ""}.items():
        (group / name).write_text(text)
    limit = find_limit(root)
    assert isinstance(limit, GroupLimit)
    assert (group / "cgroup.procs").read_text() == str(os.getpid())
    assert limit.used_bytes() == 70 * MB


def test_a_group_that_does_not_divide_memory_yet_is_made_to_once_this_process_is_below_it(root):
    own = root / "sys/fs/cgroup/app"
    (own / "cgroup.subtree_control").write_text("")
    group = own / "pathweave-elastic"
    group.mkdir()
    (group / "memory.high").write_text("max")
    assert isinstance(find_limit(root), GroupLimit)
    assert (own / "cgroup.subtree_control").read_text() == "+memory"
    assert (group / "cgroup.procs").read_text() == str(os.getpid())


def test_where_memory_cannot_be_divided_this_process_moves_back_and_says_why(root):
    own = root / "sys/fs/cgroup/app"
    (own / "cgroup.subtree_control").write_text("")
    found = find_limit(root)  # the files of the kernel do not appear
    assert isinstance(found, CapLimit)
    assert "memory.high" in found.reason
    assert (own / "cgroup.procs").read_text() == str(os.getpid())


def test_a_limit_is_kept_from_the_first_reading_on_after_the_last_one_above_it():
    stage = Stage(10, [(0.0, 30), (0.5, 12), (0.7, 9), (1.5, 11), (1.6, 10)])
    assert stage.adapt_s() == 1.6
    assert stage.over(1.0) == 1
    assert Stage(10, [(0.0, 9), (1.0, 10)]).adapt_s() == 0.0
    assert Stage(10, [(0.0, 9), (1.0, 11)]).adapt_s() == 1.0
