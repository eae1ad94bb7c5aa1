from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

from benchmarks.family.bench import TARGETS, run
from benchmarks.family.choosing import path_text
from benchmarks.family.figures import (
    Duel,
    JudgedFamily,
    evenly_spaced,
    figures_of,
    front,
    gain_points,
    nearest_member,
    rival,
    worst_gap_points,
)
from benchmarks.family.networks import families
from benchmarks.runner.run import BenchOptions
from benchmarks.sure.networks import Skipped
from device_sdk.progress import SilentProgress
from device_sdk.supernet.blocks import Block, CutPoint, Golden, Member, Rendition, TensorSpec
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet


def path(name: str, rendition: str = "fp32", size: tuple[int, ...] = ()) -> Subnet:
    return Subnet((Edge(name, rendition, size),))


def right(*shares: float) -> np.ndarray:
    """[latency, sample]: of 100 samples the first ones are right."""
    return np.array([np.arange(100) < 100 * share for share in shares], dtype=np.float64)


def judged(
    *duels: tuple[float, str | None, str],
    shares: dict[str, float],
    ratios: dict[str, float],
    rungs: tuple[str, ...],
    stitched: tuple[str, ...] = (),
    path_bytes: dict[str, int] | None = None,
) -> JudgedFamily:
    return JudgedFamily(
        [Duel(limit, None if ours is None else path(ours), path(rival_)) for limit, ours, rival_ in duels],
        [path(name) for name in rungs],
        {path(name): ratio for name, ratio in ratios.items()},
        {path(name): np.arange(100) < 100 * share for name, share in shares.items()},
        [path(name) for name in stitched],
        {path(name): (path_bytes or {}).get(name, 10) for name in ratios},
    )


def test_latencies_are_evenly_spaced_in_logarithm_between_the_fastest_and_the_slowest():
    assert evenly_spaced([0.5, 0.25, 1.0], 3) == pytest.approx([0.25, 0.5, 1.0])


def test_the_rival_is_the_most_accurate_rung_within_the_latency_and_of_equals_the_slowest():
    latencies, accuracies = np.array([0.3, 0.5, 0.6, 0.9]), np.array([0.7, 0.8, 0.8, 0.9])
    assert rival(latencies, accuracies, 0.59) == 1
    assert rival(latencies, accuracies, 0.6) == 2
    assert rival(latencies, accuracies, 1.0) == 3


def test_the_rival_is_the_fastest_rung_where_none_measures_within_the_latency():
    assert rival(np.array([0.5, 0.31]), np.array([0.9, 0.7]), 0.3) == 1


def test_the_gain_is_the_mean_over_latencies_with_its_interval_over_samples():
    mean, low = gain_points(right(0.9, 0.8), right(0.8, 0.8))
    assert mean == pytest.approx(5.0)
    assert 0.0 < low < mean


def test_equal_answers_gain_nothing_for_certain():
    assert gain_points(right(0.8), right(0.8)) == (0.0, 0.0)


def test_gains_at_one_latency_do_not_hide_the_worst_gap_at_another():
    assert worst_gap_points(right(0.9, 0.7), right(0.8, 0.75)) == pytest.approx(5.0)
    assert worst_gap_points(right(0.9, 0.8), right(0.8, 0.75)) == pytest.approx(-5.0)


def test_the_front_has_what_is_not_slower_and_less_accurate_than_another():
    latencies, accuracies = np.array([0.2, 0.4, 0.4, 0.6, 0.6]), np.array([0.5, 0.7, 0.6, 0.7, 0.8])
    assert front(latencies, accuracies).tolist() == [True, True, False, False, True]
    assert front(np.array([0.3, 0.3]), np.array([0.5, 0.5])).tolist() == [True, True]


def test_chosen_paths_on_the_joint_front_count_once_and_rungs_do_not():
    family = judged(
        (0.3, "stitched", "small"),
        (0.4, "stitched", "small"),
        (0.5, "mixed", "small"),
        (0.7, "beaten", "large"),
        (1.0, "large", "large"),
        shares={"small": 0.6, "large": 0.9, "stitched": 0.7, "mixed": 0.8, "beaten": 0.75},
        ratios={"small": 0.25, "large": 0.65, "stitched": 0.3, "mixed": 0.5, "beaten": 0.69},
        rungs=("small", "large"),
        stitched=("stitched",),
    )
    figures = figures_of(family)
    assert (figures["front_points"], figures["stitched_points"]) == (2.0, 1.0)
    assert figures["mean_gain_points"] == pytest.approx(np.mean([10, 10, 20, -15, 0]))
    assert figures["worst_gap_points"] == pytest.approx(15.0)


def test_a_choice_more_than_two_percent_over_its_latency_is_counted():
    family = judged(
        (0.5, "ours", "rung"),
        (0.6, "ours", "rung"),
        shares={"ours": 0.8, "rung": 0.7},
        ratios={"ours": 0.52, "rung": 0.4},
        rungs=("rung",),
    )
    assert figures_of(family)["over_budget_share"] == 0.5


def test_a_refused_adaptation_is_counted_and_compared_with_nothing():
    family = judged((0.3, None, "rung"), shares={"rung": 0.7}, ratios={"rung": 0.3}, rungs=("rung",))
    assert figures_of(family) == {"refused_runs": 1.0}


def test_bytes_are_compared_with_the_nearest_member_of_the_same_rendition_and_size():
    rungs = [path("large"), path("small"), path("small", "int8"), path("large", size=(8, 8))]
    ratios = dict(zip(rungs, (1.0, 0.4, 0.2, 0.5), strict=True))
    ours = Subnet((Edge("a"), Edge("b"), Edge("c", "int8")))
    assert nearest_member(ours, rungs, ratios | {ours: 0.5}) == rungs[1]
    assert nearest_member(ours.at((8, 8)), rungs, ratios | {ours.at((8, 8)): 0.2}) == rungs[3]


def test_the_largest_ratio_of_bytes_is_the_figure():
    family = judged(
        (0.4, "small path", "small"),
        (1.0, "large path", "large"),
        shares=dict.fromkeys(("small path", "large path", "small", "large"), 0.8),
        ratios={"small path": 0.35, "large path": 0.95, "small": 0.3, "large": 1.0},
        rungs=("small", "large"),
        path_bytes={"small": 100, "large": 400, "small path": 130, "large path": 440},
    )
    assert figures_of(family)["part_bytes_over_member"] == pytest.approx(1.3)


def block(name: str, start: int, end: int, kind: str = "original") -> Block:
    renditions = (Rendition("fp32", "onnxruntime", "blob", 1, Golden((), 0.0)),)
    renditions += (Rendition("int8", "onnxruntime", "blob8", 1, Golden((), 0.0)),)
    return Block(name, start, end, kind, 1, 1, renditions)


def test_a_path_is_told_by_its_members_renditions_and_stitches():
    cuts = [CutPoint(number, (TensorSpec(f"cut_{number}", (3, 8, 8)),)) for number in range(4)]
    blocks = [block("a.o0", 0, 1), block("a.o1", 1, 3), block("b.o0", 0, 2), block("b.o1", 2, 3)]
    members = [Member("a", ("a.o0", "a.o1")), Member("b", ("b.o0", "b.o1"))]
    supernet = Supernet(cuts, [*blocks, block("a.1-to-b.1", 1, 2, "stitch")], members=members)
    whole = Subnet((Edge("a.o0", "int8"), Edge("a.o1")))
    assert path_text(supernet, whole) == "a 1 int8 + 1 fp32"
    through = Subnet((Edge("a.o0"), Edge("a.1-to-b.1", "int8"), Edge("b.o1")))
    assert path_text(supernet, through) == "a 1 fp32, stitch int8, b 1 fp32"
    assert path_text(supernet, whole.at((6, 8))) == "a 1 int8 + 1 fp32, 6x8"


def test_a_family_with_fewer_than_two_members_is_skipped_with_the_reasons(tmp_path: Path, monkeypatch) -> None:
    def missing(options: BenchOptions, variant: int) -> str | None:
        return f"no weights of {variant}" if variant else None

    monkeypatch.setattr("benchmarks.family.networks.missing_weights", missing)
    options = BenchOptions(quick=False, data_folder=tmp_path, work_folder=tmp_path, progress=SilentProgress())
    assert next(families(options)) == Skipped("lite", "lite1: no weights of 1; lite2: no weights of 2")


@pytest.mark.slow
@pytest.mark.alone
def test_the_quick_bench_judges_a_family_at_each_latency(shared_data: Path, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATHWEAVE_CACHE", str(tmp_path / "cache"))
    work = tmp_path / "work"
    work.mkdir()
    options = BenchOptions(quick=True, data_folder=shared_data, work_folder=work, progress=SilentProgress())
    outcome = run(options)
    assert {name for name in TARGETS if name.endswith("_cifar")} <= outcome.figures.keys()
    assert outcome.figures["refused_runs_cifar"] == 0.0
    assert all(map(math.isfinite, outcome.figures.values()))
    duels = [row for row in outcome.table if row["what"] == "latency"]
    rungs = [row["rung"] for row in outcome.table if row["what"] == "rung"]
    assert len(duels) == 3
    assert len(rungs) == len(set(rungs)) == 4  # two members in two renditions
    assert {row["rival"] for row in duels} <= set(rungs)
    [packaging] = [row for row in outcome.table if row["what"] == "packaging"]
    assert packaging["members"] == ["resnet32-cifar10", "resnet20-cifar10"]
