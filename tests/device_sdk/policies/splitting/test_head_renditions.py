from __future__ import annotations

import math
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.policies.splitting.head_renditions import BlockChoice, best_heads, block_choices, head_of
from device_sdk.supernet.blocks import Block, CutPoint, Golden, Rendition, TensorSpec
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

NAMES = ("fp32", "int8", "w4")


@st.composite
def _problems(draw, most_blocks=4):
    """Blocks with some renditions each, w4 timed as fp32, and a device's cost model for them."""
    choices, costs = [], {}
    for number in range(draw(st.integers(1, most_blocks))):
        own = []
        for name in ("fp32", *sorted(draw(st.sets(st.sampled_from(NAMES[1:]))))):
            edge = Edge(f"o{number}", name)
            timed = Edge(f"o{number}") if name == "w4" else edge
            own.append(
                BlockChoice(
                    edge,
                    timed,
                    stored_bytes=draw(st.integers(1, 40)),
                    resident_bytes=draw(st.integers(1, 40)),
                    working_bytes=draw(st.integers(1, 20)),
                    error=0.0 if name == "fp32" else draw(st.sampled_from([0.1, 0.25, 0.5])),
                )
            )
            costs[edge] = EdgeCost(draw(st.sampled_from([0.5, 1.0, 1.75])), 2.0, 1, 1)
        choices.append(own)
    changes = {edge: draw(st.sampled_from([0.0, 0.25])) for edge in costs}
    model = CostModel(costs, scale=draw(st.sampled_from([1.0, 20.0])), offset_ms=0.25, entry_change_ms=changes)
    limits = st.sampled_from([25, 60, 110, math.inf])
    return choices, model, draw(limits), draw(limits)


def every_head(choices, model, count, *limits):
    whole = [own[0].timed for own in choices]
    found = (head_of(blocks, model, whole) for blocks in product(*choices[:count]))
    return [head for head in found if head.fits(*limits)]


@given(problem=_problems())
@settings(max_examples=150, deadline=None)
def test_for_every_error_the_fastest_head_is_that_of_trying_everything(problem):
    choices, model, *limits = problem
    found = best_heads(choices, model, memory_bytes=limits[0], stored_bytes=limits[1])
    assert found.optimal
    for count in range(1, len(choices) + 1):
        every = every_head(choices, model, count, *limits)
        assert bool(found.by_count[count]) == bool(every)
        for most in sorted({head.error for head in every}):
            best = min(head.device_ms for head in every if head.error <= most + 1e-9)
            mine = [head.device_ms for head in found.by_count[count] if head.error <= most + 1e-9]
            assert min(mine) == pytest.approx(best)


@given(problem=_problems(6))
@settings(max_examples=60, deadline=None)
def test_heads_keep_both_limits_also_where_partial_choices_are_left_out(problem):
    choices, model, *limits = problem
    found = best_heads(choices, model, memory_bytes=limits[0], stored_bytes=limits[1], width=10)
    for count, heads in enumerate(found.by_count[1:], start=1):
        for head in heads:
            assert head.fits(*limits)
            places = [[one.edge for one in own].index(edge) for own, edge in zip(choices, head.edges, strict=False)]
            assert len(head.edges) == count
            whole = [own[0].timed for own in choices]
            assert head == head_of([own[place] for own, place in zip(choices, places, strict=False)], model, whole)


def uniform(count, errors):
    """Blocks that are stored in fp32, w8 or w4 and compute the same."""
    sizes = {"fp32": 400, "w8": 100, "w4": 50}
    return [
        [
            BlockChoice(Edge(f"o{number}", name), Edge(f"o{number}"), size, 400, 10, 0.0 if name == "fp32" else error)
            for (name, size), error in zip(sizes.items(), (0.0, *errors[number]), strict=True)
        ]
        for number in range(count)
    ]


def test_storage_goes_to_the_blocks_that_lose_most():
    choices = uniform(2, [(0.01, 0.9), (0.01, 0.1)])
    model = CostModel({own[0].edge: EdgeCost(1.0, 1.0, 400, 10) for own in choices})
    [head] = best_heads(choices, model, stored_bytes=160).by_count[-1]
    assert [edge.rendition for edge in head.edges] == ["w8", "w4"]


def test_without_a_limit_nothing_that_is_no_faster_is_taken():
    choices = uniform(3, [(0.01, 0.1)] * 3)
    model = CostModel({own[0].edge: EdgeCost(1.0, 1.0, 400, 10) for own in choices})
    [head] = best_heads(choices, model).by_count[-1]
    assert {edge.rendition for edge in head.edges} == {"fp32"}


def test_many_blocks_stay_within_seconds_and_the_budget_is_used():
    choices = uniform(40, [(0.01 * (1 + number % 7), 0.1 * (1 + number % 5)) for number in range(40)])
    model = CostModel({own[0].edge: EdgeCost(1.0, 1.0, 400, 10) for own in choices})
    found = best_heads(choices, model, stored_bytes=40 * 80)
    best = min(found.by_count[-1], key=lambda head: head.error)
    assert 40 * 75 <= best.stored_bytes <= 40 * 80


def test_what_the_runtime_expands_counts_with_the_latency_of_the_original():
    def rendition(name, runtime="onnxruntime", **more):
        return Rendition(name, runtime, "0" * 64, 1, Golden((), 0.0), **more)

    forms = (
        rendition("fp32"),
        rendition("w4", error=0.01, loaded_bytes=400),
        rendition("int8", error=0.02),
        rendition("xnnpack", "executorch"),
        rendition("fp16"),  # not measured here
    )
    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", (1,)),)) for index in range(2)]
    supernet = Supernet(cuts, [Block("o0", 0, 1, "original", 1, 1, forms)])
    measured = {"fp32": 2.0, "w4": 1.9, "int8": 1.0, "xnnpack": 0.5}
    device = CostModel({Edge("o0", name): EdgeCost(ms, ms, 400, 10) for name, ms in measured.items()})
    stored = {edge: 50 for edge in device.edge_costs}
    [choices] = block_choices(supernet, Subnet((Edge("o0", "w4"),)), device, stored)
    assert [one.edge.rendition for one in choices] == ["w4", "fp32", "int8"]  # the subnet's own first
    assert [head_of([one], device, [one.timed]).device_ms for one in choices] == [2.0, 2.0, 1.0]
    assert [one.error for one in choices] == [0.01, 0.0, 0.02]
