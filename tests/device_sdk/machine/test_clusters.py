from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.machine.clusters import MOST_COUNTS, Cluster, allowed_cores, clusters, grouped, thread_counts

CAPACITY, FREQUENCY = "cpu_capacity", "cpufreq/cpuinfo_max_freq"


@pytest.fixture
def system(tmp_path):
    """Writes one number for each core of a system."""

    def write(name, values):
        for core, value in enumerate(values):
            path = tmp_path / f"sys/devices/system/cpu/cpu{core}/{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        return tmp_path

    return write


@pytest.mark.parametrize("name", [CAPACITY, FREQUENCY])
def test_two_kinds_of_cores_are_little_and_big(system, name):
    root = system(name, [400, 400, 400, 1024, 1024])
    found = clusters(root, cores=range(5))
    assert found == (Cluster("little", (0, 1, 2), 400), Cluster("big", (3, 4), 1024))


def test_three_kinds_have_a_mid_one_and_the_numbers_of_cores_may_be_mixed(system):
    root = system(CAPACITY, [1024, 325, 325, 800, 800, 325])
    found = clusters(root, cores=range(6))
    assert [(one.name, one.cores) for one in found] == [("little", (1, 2, 5)), ("mid", (3, 4)), ("big", (0,))]


def test_cores_of_one_kind_are_one_cluster_without_a_name(system):
    assert clusters(system(CAPACITY, [1024] * 4), cores=range(4)) == (Cluster("", (0, 1, 2, 3), 1024),)


def test_favoured_cores_of_one_kind_stay_together(system):
    root = system(FREQUENCY, [5_400_000, 5_400_000, 5_200_000, 5_200_000, 3_900_000, 3_900_000])
    assert [one.cores for one in clusters(root, cores=range(6))] == [(4, 5), (0, 1, 2, 3)]


def test_only_cores_that_this_process_may_use_count(system):
    root = system(CAPACITY, [400, 400, 1024, 1024])
    assert clusters(root, cores={0, 1}) == (Cluster("", (0, 1), 400),)
    assert [one.cores for one in clusters(root, cores={1, 2})] == [(1,), (2,)]


def test_the_capacity_is_preferred_to_the_frequency(system):
    system(FREQUENCY, [2_000_000, 2_000_000])
    assert [one.name for one in clusters(system(CAPACITY, [500, 1024]), cores=range(2))] == ["little", "big"]


@pytest.mark.parametrize("odd", ["", "fast", "-3", "0", "\0", "9" * 40])
def test_a_system_that_says_nothing_or_nonsense_of_a_core_has_no_clusters(system, tmp_path, odd):
    assert clusters(tmp_path / "nothing", cores=range(2)) == ()
    assert clusters(system(CAPACITY, [1024, odd]), cores=range(2)) == ()


def test_of_four_kinds_the_two_nearest_are_joined():
    found = grouped({0: 100, 1: 500, 2: 600, 3: 1024})
    assert [(one.name, one.cores) for one in found] == [("little", (0,)), ("mid", (1, 2)), ("big", (3,))]


def test_this_machine_is_read_without_an_error():
    cores = [core for one in clusters() for core in one.cores]
    assert not cores or tuple(sorted(cores)) == allowed_cores()


@given(st.dictionaries(st.integers(0, 63), st.integers(1, 2**40), min_size=1))
def test_each_core_is_in_one_cluster_and_slower_clusters_come_first(capacities):
    found = grouped(capacities)
    assert sorted(core for one in found for core in one.cores) == sorted(capacities)
    assert len(found) <= 3
    assert len({one.name for one in found}) == len(found)
    for slower, faster in pairwise(found):
        assert slower.capacity < min(capacities[core] for core in faster.cores)


@pytest.mark.parametrize(
    ("cores", "counts"),
    [(1, (1,)), (2, (1, 2)), (3, (1, 2, 3)), (6, (1, 2, 4, 6)), (8, (1, 2, 4, 8)), (64, (1, 2, 4, 8, 64)), (0, (1,))],
)
def test_numbers_of_threads_double_up_to_all_cores(cores, counts):
    assert thread_counts(cores) == counts
    assert len(counts) <= MOST_COUNTS
