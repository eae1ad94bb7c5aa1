from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError
from device_sdk.execution.pager import SESSION_BYTES, Footprint, all_stay
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.stretches import GROUP_BYTES, Part, Timing, groups, groups_that_stay, measure_parts
from device_sdk.supernet.cost import MB
from device_sdk.supernet.plan import Edge, ExitChoice

pytestmark = pytest.mark.alone


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12), limit=st.integers(0, 120), data=st.data())
def test_every_part_is_in_a_group_beside_the_reference(sizes, limit, data):
    reference = data.draw(st.integers(0, len(sizes) - 1))
    found = groups(sizes, limit=limit, reference=reference)
    others = [index for group in found for index in group if index != reference]
    assert sorted(others) == [index for index in range(len(sizes)) if index != reference]
    for group in found:
        assert reference in group
        assert sum(sizes[index] for index in group) <= limit or len(group) <= 2


def test_what_fits_is_one_group():
    assert groups([10, 20, 30], limit=60, reference=1) == [[0, 1, 2]]
    assert groups([10], limit=1, reference=0) == [[0]]


class SlowingRuntime:
    """A runtime on its own clock: 1 ms per block, twice as long once it has loaded ``quick`` stretches.

    Implements the runtime port.
    """

    identity = "slowing"

    def __init__(self, quick):
        self.now_ns = self.loaded = self.open = self.most_open = 0
        self._quick = quick

    def clock(self):
        return self.now_ns

    waits_for_threads = False

    def taking_turns(self):
        return self

    def load(self, stretch):
        self.loaded += 1
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        return SlowingStretch(self, len(stretch.fragments))

    @property
    def speed(self):
        return 2 if self.loaded > self._quick else 1


class SlowingStretch:
    def __init__(self, runtime, blocks):
        self._runtime, self._blocks = runtime, blocks

    def run(self, inputs):
        self._runtime.now_ns += self._runtime.speed * self._blocks * 1_000_000
        return list(inputs)

    def close(self):
        self._runtime.open -= 1


def parts_of(bundle, weight_bytes):
    edges = (Edge("o0"), Edge("o1"), Edge("o2"), Edge("o3"))
    return [Part(edges[:count], None, weight_bytes) for count in (1, 2, 3, 4)]


def test_parts_too_large_to_be_there_at_once_are_timed_in_groups_at_one_speed(bundle):
    runtime = SlowingRuntime(quick=2)
    parts = parts_of(bundle, GROUP_BYTES // 2)
    found = measure_parts(Workspace(bundle, runtime), parts, Timing(rounds=5, clock=runtime.clock), reference=3)
    blobs = [len(bundle.blob_names(part.edges)) for part in parts]
    assert runtime.most_open == 2
    assert runtime.loaded == 6
    assert runtime.open == 0
    assert [one.latency.median_ms for one in found] == pytest.approx(blobs)


def test_small_parts_are_loaded_once_and_timed_together(bundle):
    runtime = SlowingRuntime(quick=100)
    measure_parts(Workspace(bundle, runtime), parts_of(bundle, 1000), Timing(rounds=2, clock=runtime.clock))
    assert (runtime.loaded, runtime.most_open, runtime.open) == (4, 4, 0)


def test_a_part_weighs_its_blobs_each_once(bundle):
    sizes = bundle.blob_sizes()
    part = Part.of(bundle, (Edge("o0"), Edge("o1")))
    assert part.weight_bytes == sum(sizes[name] for name in set(bundle.blob_names(part.edges)))
    assert Part.of(bundle, (), ExitChoice("x1-pooled", 1.0)).weight_bytes > 0


def test_a_blob_that_is_gone_is_a_blob_error(own_bundle):
    bundle = Bundle.open(own_bundle.folder)
    own_bundle.blob("o2").unlink()
    with pytest.raises(BlobError) as caught:
        Part.of(bundle, (Edge("o2"),))
    assert caught.value.hint


def prints_of(megabytes):
    return [Footprint(5 * size * MB, size * MB, MB) for size in megabytes]


@given(sizes=st.lists(st.integers(0, 50), min_size=1, max_size=12), cap=st.integers(0, 300), data=st.data())
def test_under_a_cap_every_part_is_in_a_group_that_can_be_there_at_once_or_alone(sizes, cap, data):
    prints, reference = prints_of(sizes), data.draw(st.integers(0, len(sizes) - 1))
    found = groups_that_stay(prints, cap * MB, reference=reference)
    assert {index for group in found for index in group} == set(range(len(sizes)))
    for group in found:
        assert len(group) == 1 or all_stay([prints[index] for index in group], cap * MB)


def test_the_reference_is_in_every_group_that_has_room_for_it():
    assert groups_that_stay(prints_of([1, 1, 2, 8]), 12 * MB, reference=0) == [[0, 1, 2], [3]]
    assert groups_that_stay(prints_of([3, 1, 1]), 8 * MB, reference=0) == [[0], [1, 2]]


def test_under_a_cap_parts_are_timed_in_turns_only_as_far_as_they_fit(bundle):
    runtime = SlowingRuntime(quick=100)
    timing = Timing(rounds=2, clock=runtime.clock)
    workspace = Workspace(bundle, runtime, 2 * SESSION_BYTES + 600_000)
    found = measure_parts(workspace, parts_of(bundle, 1000), timing, reference=3)
    assert runtime.most_open == 2
    assert runtime.open == 0
    assert not any(one.in_pages for one in found)
