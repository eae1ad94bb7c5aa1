from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from device_sdk.errors import InfeasibleBudgetError
from device_sdk.progress import SilentProgress
from device_sdk.random_source import SplitMix64
from device_sdk.search import STRATEGIES, SearchProblem, find_subnets, make_strategy
from device_sdk.search.ladder import climb, ladder, rungs_near
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Member, Rendition, TensorSpec
from device_sdk.supernet.cost import Budget, CostModel, EdgeCost
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet
from tests.device_sdk.search.conftest import TableEvaluator

SIDES = {(): 10, (8, 8): 8, (6, 6): 6}


def shapes(side: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
    return (((1, side, side),), ((4,),), ((4,),))


def block(name: str, start: int, end: int, kind: str, *renditions: str) -> Block:
    forms = tuple(Rendition(one, "none", "0" * 64, 1, Golden((), 0.0), any_size=True) for one in renditions)
    return Block(name, start, end, kind, 0, 0, forms)


@pytest.fixture
def supernet() -> Supernet:
    """Two originals, of which only the first has int8, at three input sizes; and a merged block over both."""
    cuts = [CutPoint(k, (TensorSpec(f"cut_{k}", *shape),)) for k, shape in enumerate(shapes(10))]
    sizes = [InputSize((side, side), shapes(side), Golden((), 0.0)) for side in (8, 6)]
    blocks = [block("o0", 0, 1, "original", "fp32", "int8"), block("o1", 1, 2, "original", "fp32")]
    return Supernet(cuts, [*blocks, block("m0-2", 0, 2, "merged", "fp32")], input_sizes=sizes)


@pytest.fixture
def costs(supernet: Supernet) -> CostModel:
    """A block of the original path costs a hundredth of its pixels, half of it in int8, the merged one little."""

    def ms(edge: Edge) -> float:
        own = SIDES[edge.input_size] ** 2 / 100
        return {"o0": own / (2 if edge.rendition == "int8" else 1), "o1": own, "m0-2": own / 2}[edge.block]

    return CostModel({edge: EdgeCost(ms(edge), ms(edge), 10, 10) for edge in supernet.edges})


def accuracy(subnet: Subnet) -> float:
    """The larger the input, the better; the merged block is worse than any rung."""
    return 0.3 if subnet.edges[0].block == "m0-2" else 0.5 + 0.04 * SIDES[subnet.input_size]


def problem(supernet: Supernet, costs: CostModel, budget: Budget, **more) -> tuple[SearchProblem, TableEvaluator]:
    evaluator = TableEvaluator(more.pop("accuracy", accuracy))
    clock = more.pop("clock", lambda: 0.0)
    return SearchProblem(
        supernet, costs, budget, evaluator, SplitMix64(0), clock=clock, progress=SilentProgress(), **more
    ), evaluator


def names(subnets) -> list[str]:
    return [str(one) for one in subnets]


def test_every_rendition_has_a_column_of_all_input_sizes_and_nothing_stands_twice(supernet):
    fp32, int8 = ladder(supernet)
    assert names(fp32) == ["6x6: o0 o1", "8x8: o0 o1", "o0 o1"]
    assert names(int8) == ["6x6: o0@int8 o1", "8x8: o0@int8 o1", "o0@int8 o1"]


def test_the_slowest_rung_of_each_rendition_that_fits_comes_first(supernet, costs):
    # fp32: 2.0, 1.28, 0.72 ms; int8: 1.5, 0.96, 0.54 ms
    near = names(rungs_near(supernet, costs, Budget(latency_ms=1.45)))
    assert near[:2] == ["8x8: o0 o1", "8x8: o0@int8 o1"]
    assert near[2] == "6x6: o0 o1"
    assert near[3] == "o0@int8 o1", "predicted 3 % above the budget: it may measure within it"
    assert "o0 o1" not in near


def test_without_a_latency_the_slowest_comes_first(supernet, costs):
    assert names(rungs_near(supernet, costs, Budget(memory_mb=1.0)))[:2] == ["o0 o1", "o0@int8 o1"]


@pytest.mark.parametrize("strategy", sorted(STRATEGIES))
@pytest.mark.parametrize("limit_ms", [0.6, 0.8, 1.0, 1.3, 1.6, 2.1])
def test_no_strategy_returns_less_than_a_rung_that_fits(supernet, costs, strategy, limit_ms):
    wanted, _ = problem(supernet, costs, Budget(latency_ms=limit_ms))
    found = find_subnets(make_strategy(strategy), wanted)
    rungs = [one for column in ladder(supernet) for one in column if costs.latency_ms(one) <= limit_ms]
    assert found.best is not None
    assert found.best.accuracy == max(map(accuracy, rungs))
    assert set(rungs) <= {one.subnet for one in found.pool}


def alike(subnet: Subnet) -> float:
    """All rungs are right nearly as often."""
    return 0.8 + 0.001 * SIDES[subnet.input_size]


def out_of_time(
    supernet: Supernet, costs: CostModel, limit_ms: float, accuracy
) -> tuple[SearchProblem, TableEvaluator]:
    ticks = iter(range(1000))
    budget = Budget(latency_ms=limit_ms)
    return problem(supernet, costs, budget, clock=lambda: float(next(ticks)), time_limit_s=1.0, accuracy=accuracy)


def test_the_largest_rungs_of_each_rendition_are_evaluated_whatever_the_time_limit(supernet, costs):
    climbed = climb(out_of_time(supernet, costs, 2.1, alike)[0])
    found = names(one.subnet for one in climbed.known)
    assert found == ["o0 o1", "o0@int8 o1", "8x8: o0 o1", "8x8: o0@int8 o1"]
    assert climbed.time_limit_s == 0.0


def test_so_is_the_next_slower_one_if_it_may_measure_within_the_budget(supernet, costs):
    found = names(one.subnet for one in climb(out_of_time(supernet, costs, 1.45, alike)[0]).known)
    assert found == ["o0@int8 o1", "8x8: o0 o1", "8x8: o0@int8 o1", "6x6: o0 o1", "6x6: o0@int8 o1"]


def test_a_rung_that_is_surely_worse_leaves_the_race_early(supernet, costs):
    """With int8 a tenth worse, neither its largest nor its second largest input is evaluated on all samples."""
    wanted, evaluator = out_of_time(
        supernet, costs, 2.1, lambda one: alike(one) - 0.1 * any(edge.rendition == "int8" for edge in one.edges)
    )
    assert names(one.subnet for one in climb(wanted).known) == ["o0 o1", "8x8: o0 o1"]
    assert evaluator.samples_run <= 2 * evaluator.sample_count + evaluator.sample_count // 4


def test_with_time_left_the_losers_are_evaluated_last(supernet, costs):
    wanted, _ = problem(
        supernet, costs, Budget(latency_ms=2.1), accuracy=lambda one: 0.7 if "int8" in str(one) else 0.8
    )
    found = names(one.subnet for one in climb(wanted).known)
    assert found[-1] == "o0@int8 o1"
    assert sorted(found) == sorted(names(rung for column in ladder(supernet) for rung in column))


def test_where_no_rung_fits_the_fastest_subnet_is_the_first_answer(supernet, costs):
    wanted, _ = problem(supernet, costs, Budget(latency_ms=0.3))
    assert names(one.subnet for one in climb(wanted).known) == ["6x6: m0-2"]
    with pytest.raises(InfeasibleBudgetError):
        climb(replace(wanted, budget=Budget(latency_ms=0.1)))


def test_of_rungs_that_differ_in_size_alone_the_larger_is_expected_to_be_at_least_as_accurate(supernet, costs):
    """The smallest input measures best, by chance."""
    lucky = {(): 0.80, (8, 8): 0.80, (6, 6): 0.81}
    wanted, _ = problem(supernet, costs, Budget(latency_ms=2.1), accuracy=lambda one: lucky[one.input_size])
    found = find_subnets(make_strategy("adaptivenet"), wanted)
    expected = {one.subnet: one.expected for one in found.pool}
    for column in ladder(supernet):
        assert all(expected[small] < expected[large] for small, large in pairwise(column))


class PairedEvaluator(TableEvaluator):
    """The merged block is right on ``gained`` samples more than the rungs and wrong on ``lost`` of theirs."""

    def __init__(self, gained: int, lost: int) -> None:
        self.gained, self.lost = gained, lost
        super().__init__(lambda one: float(self._right(one).mean()))

    def distances(self, subnets, samples):
        return np.array([1.0 if one.edges[0].block == "m0-2" else 0.2 for one in subnets])

    def _row(self, subnet: Subnet) -> np.ndarray:
        return np.where(self._right(subnet), 1.0, -1.0)

    def _right(self, subnet: Subnet) -> np.ndarray:
        right = np.arange(self.sample_count) < 800
        if subnet.edges[0].block == "m0-2":
            right[: self.lost] = False
            right[800 : 800 + self.gained] = True
        return right


@pytest.mark.parametrize(("gained", "lost", "chosen"), [(27, 25, "o0"), (100, 5, "m0-2")])
def test_a_candidate_that_is_better_by_less_than_chance_does_not_replace_a_rung(supernet, costs, gained, lost, chosen):
    wanted, _ = problem(supernet, costs, Budget(latency_ms=0.75))
    found = find_subnets(make_strategy("pathweave"), replace(wanted, evaluator=PairedEvaluator(gained, lost))).best
    assert found is not None
    assert found.subnet.edges[0].block == chosen


def test_each_member_of_a_family_has_columns_of_its_own():
    cuts = [
        CutPoint(k, (TensorSpec(f"cut_{k}", *shape),))
        for k, shape in enumerate([((1, 10, 10),), ((4,),), ((4,),), ((4,),)])
    ]
    sizes = [InputSize((8, 8), (((1, 8, 8),), ((4,),), ((4,),), ((4,),)), Golden((), 0.0))]
    blocks = [
        block("a.o0", 0, 1, "original", "fp32", "int8"),
        block("a.o1", 1, 3, "original", "fp32", "int8"),
        block("b.o0", 0, 2, "original", "fp32", "int8"),
        block("b.o1", 2, 3, "original", "fp32"),
        block("stitch", 1, 2, "stitch", "fp32"),
    ]
    members = [Member("a", ("a.o0", "a.o1")), Member("b", ("b.o0", "b.o1"))]
    columns = ladder(Supernet(cuts, blocks, input_sizes=sizes, members=members))
    assert [[str(rung) for rung in column] for column in columns] == [
        ["8x8: a.o0 a.o1", "a.o0 a.o1"],
        ["8x8: a.o0@int8 a.o1@int8", "a.o0@int8 a.o1@int8"],
        ["8x8: b.o0 b.o1", "b.o0 b.o1"],
        ["8x8: b.o0@int8 b.o1", "b.o0@int8 b.o1"],
    ]
