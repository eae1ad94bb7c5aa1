from __future__ import annotations

import pytest

from device_sdk.errors import UsageError
from device_sdk.machine import usable_cores
from device_sdk.machine.clusters import Cluster
from device_sdk.runtimes.processor_homes import cores_of, homes_of, processor_homes, required_cores
from device_sdk.supernet.home import Home

LITTLE, BIG = Cluster("little", (0, 1, 2, 3), 400), Cluster("big", (4, 5), 1024)


def test_cores_that_are_alike_have_homes_by_number_of_threads():
    assert [str(one) for one in homes_of(cores=6)] == ["cpu-1t", "cpu-2t", "cpu-4t", "cpu-6t"]
    assert homes_of(cores=2, kinds=[Cluster("", (0, 1), 1024)]) == homes_of(cores=2)


def test_each_cluster_adds_one_thread_and_all_of_its_cores_the_fastest_first():
    found = [str(one) for one in homes_of(cores=6, kinds=[LITTLE, BIG])]
    assert found[4:] == ["cpu-1t-big", "cpu-2t-big", "cpu-1t-little", "cpu-4t-little"]


def test_a_cluster_of_one_core_has_one_home():
    found = homes_of(cores=2, kinds=[Cluster("little", (0,), 400), Cluster("big", (1,), 1024)])
    assert [str(one) for one in found if one.cluster] == ["cpu-1t-big", "cpu-1t-little"]


def test_a_quota_of_fewer_cores_limits_the_threads_of_a_cluster():
    found = homes_of(cores=2, kinds=[LITTLE, BIG])
    assert {one.threads for one in found} == {1, 2}


def test_homes_are_written_and_read_and_differ():
    found = homes_of(cores=64, kinds=[LITTLE, BIG])
    assert len(set(found)) == len(found)
    assert [Home.parse(str(one)) for one in found] == list(found)


def test_this_machine_has_one_thread_first_and_at_most_its_cores():
    found = processor_homes()
    assert found[0] == Home()
    assert max(one.threads for one in found) == usable_cores()


@pytest.mark.parametrize("name", ["", "huge"])
def test_a_cluster_that_is_not_there_has_no_cores(name, tmp_path):
    assert cores_of(name, tmp_path) == ()


def test_a_home_on_a_cluster_that_is_not_here_is_refused(tmp_path):
    with pytest.raises(UsageError, match="cluster that is not here"):
        required_cores(Home("cpu", 1, "big"), tmp_path)
    assert required_cores(Home("cpu", 1), tmp_path) == ()
