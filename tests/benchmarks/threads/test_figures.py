from __future__ import annotations

import math

import pytest

from benchmarks.threads.adapting import without_homes
from benchmarks.threads.figures import Cell, figures_of, rows_of
from device_sdk.profiling.timing import Ratio
from device_sdk.supernet.plan import Edge, Subnet


def cell(over: dict[int, float], *, error: float = 0.0, accuracy: float = 0.8, fixed: dict[int, float | None]) -> Cell:
    return Cell(
        condition="idle",
        budget_ratio=0.5,
        budget_ms=8.0,
        subnet="o0~cpu-2t",
        latency_ms=7.0,
        over_fixed={count: Ratio(value, error) for count, value in over.items()},
        accuracy=accuracy,
        fixed_accuracy=fixed,
        fixed_ms={count: 7.5 for count, one in fixed.items() if one is not None},
    )


def test_the_worst_cell_counts_against_the_fixed_number_that_was_quickest_in_it() -> None:
    good = cell({1: 0.7, 2: 1.01}, fixed={1: 0.7, 2: 0.8})
    bad = cell({1: 1.2, 2: 0.9}, fixed={1: 0.82, 2: None})
    figures = figures_of([good, bad], refused=1)
    assert figures["worst_over_best_fixed"] == 1.2
    assert figures["worst_below_fixed_points"] == pytest.approx(2.0)
    assert (figures["refused_runs"], figures["cells"]) == (1.0, 2.0)


def test_the_bound_of_the_interval_is_what_counts() -> None:
    one = cell({1: 1.0}, error=0.01, fixed={1: None})
    assert figures_of([one], refused=0)["worst_over_best_fixed"] == pytest.approx(math.exp(0.0196))


def test_what_cannot_be_computed_is_left_out() -> None:
    assert figures_of([], refused=2) == {"refused_runs": 2.0, "cells": 0.0}
    assert "worst_below_fixed_points" not in figures_of([cell({1: 1.0}, fixed={1: None})], refused=0)


def test_a_cell_has_a_row_and_one_for_each_fixed_number() -> None:
    rows = rows_of([cell({1: 0.7, 2: 1.0}, fixed={1: None, 2: 0.8})])
    assert [row["threads"] for row in rows] == ["free", 1, 2]
    assert [row.get("own_choice_ms") for row in rows] == [None, None, 7.5]


def test_a_subnet_without_homes_keeps_everything_else() -> None:
    edge = Edge("o0", "int8", (160, 160), "cpu-2t")
    assert without_homes(Subnet((edge,))) == Subnet((Edge("o0", "int8", (160, 160)),))
