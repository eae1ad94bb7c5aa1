from __future__ import annotations

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import BlobError, BudgetError, RuntimeFailedError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.execution.outcome import AFTER_FAILURE
from device_sdk.execution.paging import PagedEdges, largest_batch, least_memory_cap_bytes
from device_sdk.execution.plan_segments import segments
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.plan import Edge, ExitChoice, Plan, RemoteRef, Split

MB = 1_000_000


def divided(position, bits=8, *, blocks=5):
    """A split at ``position`` whose tail is that of the original path."""
    tail = tuple(Edge(f"o{number}") for number in range(max(position, 0), blocks))
    return Split(position, (bits,), tail, RemoteRef("any:tail"))


@pytest.fixture(scope="module")
def lean():
    return OnnxRuntime(threads=1, lean=True)


@pytest.fixture
def own_heavy(build_heavy, tmp_path):
    """A smaller one that a test may damage: eight blocks of 0.6 MB."""
    source = build_heavy(blocks=8, channels=128)
    shutil.copytree(source.folder, tmp_path / "bundle")
    return Bundle.open(tmp_path / "bundle")


def plan_of(bundle: Bundle) -> Plan:
    return Plan(bundle.supernet.original)


def inputs_of(bundle: Bundle, batch: int = 2) -> np.ndarray:
    shape = bundle.supernet.cut_points[0].tensors[0].shape
    return np.random.default_rng(0).random((batch, *shape), dtype=np.float32)


def tight_cap(bundle: Bundle, plan: Plan) -> int:
    """Room for the largest block and little else."""
    return least_memory_cap_bytes(bundle, plan, batch=60)


def test_without_need_the_plan_stays_in_one_piece_and_answers_bit_by_bit_the_same(bundle, runtime, tiny_bundle):
    plan, tensor = plan_of(bundle), inputs_of(bundle)
    paged = LoadedPlan(bundle, runtime, plan, memory_cap_bytes=1000 * MB)
    assert paged.page_loads == 1
    assert np.array_equal(paged.run(tensor).output, LoadedPlan(bundle, runtime, plan).run(tensor).output)


@pytest.mark.parametrize("cap_mb", [4.0, 6.0, 9.0])
def test_pages_answer_as_the_whole_does(own_heavy, lean, cap_mb):
    plan, tensor = plan_of(own_heavy), inputs_of(own_heavy)
    whole = LoadedPlan(own_heavy, OnnxRuntime(threads=1), plan)
    paged, again = (LoadedPlan(own_heavy, lean, plan, memory_cap_bytes=round(cap_mb * MB)) for _ in range(2))
    np.testing.assert_allclose(paged.run(tensor).output, whole.run(tensor).output, atol=1e-5)
    assert np.array_equal(paged.run(tensor).output, again.run(tensor).output)
    assert whole.page_loads is None
    assert paged.page_loads > 1


def test_exits_and_splits_work_in_pages(bundle, lean):
    subnet, tensor = bundle.supernet.original, inputs_of(bundle, 40)
    plans = [
        Plan(subnet, exits=(ExitChoice("x1-pooled", 0.6), ExitChoice("x3-pooled", 0.6))),
        Plan(subnet, split=divided(2)),
        Plan(subnet, split=divided(0)),
    ]
    for plan in plans:
        paged = LoadedPlan(bundle, lean, plan, memory_cap_bytes=tight_cap(bundle, plan), batch=40)
        outcome, expected = (one.run(tensor, lambda _: None) for one in (paged, LoadedPlan(bundle, lean, plan)))
        np.testing.assert_allclose(outcome.output, expected.output, atol=1e-5)
        assert np.array_equal(outcome.answered_by, expected.answered_by)
        if plan.split:
            assert (outcome.answered_by == AFTER_FAILURE).all()


def test_a_cap_below_the_largest_block_is_refused_with_the_least_that_works(heavy_bundle, lean):
    plan = plan_of(heavy_bundle)
    least = least_memory_cap_bytes(heavy_bundle, plan)
    with pytest.raises(BudgetError, match="block o") as caught:
        LoadedPlan(heavy_bundle, lean, plan, memory_cap_bytes=least - 1)
    assert caught.value.hint == f"allow at least {np.ceil(least / 10_000) / 100:.2f} MB"


def test_working_sets_that_were_measured_and_larger_batches_need_a_larger_cap(heavy_bundle):
    plan = plan_of(heavy_bundle)
    measured = {edge: EdgeCost(1.0, 1.0, 1, 50 * MB) for edge in heavy_bundle.supernet.edges}
    plain, wide = least_memory_cap_bytes(heavy_bundle, plan), least_memory_cap_bytes(heavy_bundle, plan, batch=1000)
    assert plain < 50 * MB < least_memory_cap_bytes(heavy_bundle, plan, costs=measured)
    assert wide > plain


def test_threads_share_the_pages(own_heavy, lean):
    plan = plan_of(own_heavy)
    paged = LoadedPlan(own_heavy, lean, plan, memory_cap_bytes=tight_cap(own_heavy, plan))
    samples = [np.full_like(inputs_of(own_heavy, 1), number / 20) for number in range(20)]
    expected = [LoadedPlan(own_heavy, lean, plan).run(one).output for one in samples[:3]]
    with ThreadPoolExecutor(4) as pool:
        outputs = list(pool.map(lambda one: paged.run(one).output, samples))
    for output, wanted in zip(outputs, expected, strict=False):
        np.testing.assert_allclose(output, wanted, atol=1e-5)


def test_blobs_removed_under_a_running_plan_are_still_served(own_heavy, lean):
    plan, tensor = plan_of(own_heavy), inputs_of(own_heavy)
    paged = LoadedPlan(own_heavy, lean, plan, memory_cap_bytes=5 * MB)
    expected, loads = paged.run(tensor).output, paged.page_loads
    shutil.rmtree(own_heavy.folder)
    assert np.array_equal(paged.run(tensor).output, expected)
    assert paged.page_loads > loads


def test_a_blob_altered_in_place_is_an_error_and_not_an_answer(own_heavy, lean):
    paged = LoadedPlan(own_heavy, lean, plan_of(own_heavy), memory_cap_bytes=5 * MB)
    for blob in own_heavy.blobs.iterdir():
        with blob.open("r+b") as file:
            file.write(b"\0" * 100)
    with pytest.raises(BlobError, match="does not match its digest"):
        paged.run(inputs_of(own_heavy))


def test_a_damaged_blob_is_found_before_anything_runs(own_heavy, lean):
    last = own_heavy.supernet.rendition(own_heavy.supernet.original.edges[-1]).blob
    (own_heavy.blobs / last).write_bytes(b"\0" * (own_heavy.blobs / last).stat().st_size)
    with pytest.raises(BlobError):
        LoadedPlan(own_heavy, lean, plan_of(own_heavy), memory_cap_bytes=5 * MB)


def test_closed_twice_it_refuses_to_run(own_heavy, lean):
    paged = LoadedPlan(own_heavy, lean, plan_of(own_heavy), memory_cap_bytes=5 * MB)
    paged.close()
    paged.close()
    with pytest.raises(RuntimeFailedError, match="closed"):
        paged.run(inputs_of(own_heavy))


def test_what_was_released_is_loaded_again_and_answers_the_same(own_heavy, lean):
    paged = LoadedPlan(own_heavy, lean, plan_of(own_heavy), memory_cap_bytes=1000 * MB)
    expected = paged.run(inputs_of(own_heavy)).output
    paged.release()
    paged.release()
    assert paged.page_loads == 1
    assert np.array_equal(paged.run(inputs_of(own_heavy)).output, expected)
    assert paged.page_loads == 2


def test_edges_on_demand_share_the_cap_and_answer_as_they_do_alone(own_heavy, lean):
    edges, features, expected = own_heavy.supernet.original.edges, [inputs_of(own_heavy)], [inputs_of(own_heavy)]
    load = PagedEdges(own_heavy, lean, cap_bytes=4 * MB, batch=2)
    loaded = [load((edge,)) for edge in edges]
    for one, edge in zip(loaded, edges, strict=True):
        features, expected = one.run(features), lean.load(own_heavy.stretch((edge,))).run(expected)
        assert np.array_equal(features[0], expected[0])
    for one in loaded:
        one.close()
    with pytest.raises(BudgetError, match="block o0 alone takes"):
        PagedEdges(own_heavy, lean, cap_bytes=1 * MB, batch=2)


def test_the_batch_is_halved_until_it_fits(own_heavy):
    plan = plan_of(own_heavy)
    found = segments(own_heavy.supernet, plan)
    for wanted, room_for, batch in ((64, 64, 64), (64, 32, 32), (64, 63, 32), (200, 64, 50)):
        cap_bytes = least_memory_cap_bytes(own_heavy, plan, batch=room_for)
        assert largest_batch(own_heavy, found, cap_bytes, wanted=wanted) == batch
    assert largest_batch(own_heavy, found, None, wanted=64) == 64
    assert largest_batch(own_heavy, found, 1, wanted=64) == 1  # whoever loads it says what would fit


_MEASURE = """
import json, sys
import numpy as np
from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.supernet.plan import Plan
from device_sdk.profiling.stretches import peak_during
from device_sdk.runtimes import OnnxRuntime

folder, cap_bytes = sys.argv[1], int(sys.argv[2]) or None
bundle, runtime = Bundle.open(folder), OnnxRuntime(threads=1, lean=cap_bytes is not None)
cuts = bundle.supernet.cut_points
smallest = runtime.load(bundle.stretch(bundle.supernet.original.edges[-1:]))  # the bare runtime is not what is measured
smallest.run([np.ones((1, *cuts[-2].tensors[0].shape), np.float32)])
samples = np.ones((1, *cuts[0].tensors[0].shape), np.float32)


def work():
    plan = LoadedPlan(bundle, runtime, Plan(bundle.supernet.original), memory_cap_bytes=cap_bytes)
    return plan, [plan.run(samples).output.tolist() for _ in range(3)]


(plan, answers), peak = peak_during(work)
print(json.dumps({"peak_bytes": peak, "answers": answers, "loads": plan.page_loads}))
"""

SLACK_BYTES = 8 * MB  # what the allocator has not given back yet, and Python's own


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="reads peak memory from /proc")
def test_measured_memory_stays_under_the_cap_where_the_whole_takes_far_more(heavy_bundle):
    cap_bytes = 24 * MB
    weights = sum(heavy_bundle.blob_sizes().values())
    paged, whole = (measure(heavy_bundle.folder, cap) for cap in (cap_bytes, 0))
    assert weights > 1.7 * cap_bytes
    assert whole["peak_bytes"] > 3 * weights
    assert paged["peak_bytes"] <= cap_bytes + SLACK_BYTES
    np.testing.assert_allclose(paged["answers"], whole["answers"], atol=1e-5)


def measure(folder: Path, cap_bytes: int) -> dict:
    command = [sys.executable, "-c", _MEASURE, str(folder), str(cap_bytes)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
