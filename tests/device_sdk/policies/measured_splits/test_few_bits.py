from __future__ import annotations

import numpy as np
import pytest

from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import packet_bytes
from device_sdk.policies.measured_splits.measuring import (
    WIDTHS,
    SplitScore,
    answers_in_few_bits,
    few_bits_ms,
    narrow_cuts,
)
from device_sdk.policies.splitting.path_splits import split_costs
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Uplink
from device_sdk.tasks import answer_task


@pytest.fixture
def inputs(bundle, tiny_bundle):
    return SampleChecker(bundle.manifest).prepare(tiny_bundle.images)


def test_fewer_bytes_cross_at_each_narrow_cut_than_at_all_before(bundle):
    supernet = bundle.supernet
    subnet = supernet.original
    found = [position for position, _ in narrow_cuts(supernet, subnet)]
    assert found
    assert 0 not in found
    sizes = [
        packet_bytes(supernet.cut_points[position], subnet.edges[position:], batch=1)
        for position in range(1, supernet.output_index)
    ]
    least = [position for position in found if sizes[position - 1] == min(sizes[:position])]
    assert found == least


def test_what_few_bits_lose_is_what_the_split_decision_measures(bundle, runtime, tiny_bundle, inputs, slow_profile):
    supernet, model = bundle.supernet, slow_profile.cost_model()
    workspace, labels = Workspace(bundle, runtime), tiny_bundle.labels
    found = answers_in_few_bits(workspace, supernet.original, inputs)
    assert {bits[0] for _, _, bits in found} == set(WIDTHS)
    judge = SplitScore(workspace, supernet.original, inputs, labels, answer_task(bundle.manifest.task))
    costs = split_costs(
        supernet, supernet.original, device=model, server=model, uplink=Uplink(3.0), widths=(8, *WIDTHS)
    )
    compared = 0
    for cost in costs:
        logits = found.get((supernet.original, cost.position, cost.bits))
        if logits is not None and cost.tail:
            compared += 1
            assert np.mean(logits.argmax(axis=1) == labels) == pytest.approx(judge.whole - judge.drop(cost))
    assert compared == len(found)


def test_the_time_that_it_takes_grows_with_the_cut_points(bundle, slow_profile):
    model, subnet = slow_profile.cost_model(), bundle.supernet.original
    cuts = len(narrow_cuts(bundle.supernet, subnet))
    took_ms = few_bits_ms(bundle.supernet, subnet, model)
    assert model.latency_ms(subnet) < took_ms < (1 + len(WIDTHS) * cuts) * model.latency_ms(subnet)
