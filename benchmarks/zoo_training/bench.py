"""Training of the branch zoo: minutes for 105 branches at each of 4 exits of ResNet-20, on 5,000 images.

All 420 branches are trained at first; between rungs the hopeless half is dropped on test.zip#calibration, and what is
left gets self-merged siblings. The branches are shared by one process per core, as under torchrun. ``minutes`` is all
of it: loading, tracing, cached features, training, siblings. Beside it two
structures (the mean of all positions and one linear layer; two separable convolutions) are trained for as many steps
at the same exits, and exits are placed from both sets by their accuracy on #calibration. ``mae_gain_points``: by how
much the mean accuracy expectation (MEEdge §4.1, time in MACs) of the zoo's placement on #report is higher, the smallest
and the largest over memory budgets.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.branch_zoo import ZooSetting, exit_accuracies, load_cifar_part, prepared, zoo_setting
from benchmarks.support.zoo_processes import process_count, trained_in_processes
from device_sdk.policies.placement import expectation, place
from packager.branch_zoo.cultivation import Cultivated
from packager.branch_zoo.rungs import ZooSettings
from packager.branch_zoo.selection import KEPT_SHARE, RUNGS
from packager.branch_zoo.specs import GRID, parse

TARGETS = {"minutes": Target(maximum=30.0), "branches": Target(minimum=420.0)}
NETWORK, EXITS = "resnet20_cifar10", 4
IMAGES, QUICK_IMAGES = 5_000, 256
FIRST_EPOCHS = 0.5  # of the first rung; each later rung doubles it
ZOO = "zoo"
TWO = tuple(spec for name in ("none-p1", "separable3x2-p1") if (spec := parse(name)) is not None)
BUDGETS_BYTES = (10_000, 50_000, 250_000, 1_000_000, None)


def run(options: BenchOptions) -> BenchOutcome:
    """Train the zoo and the two structures; choose on #calibration, judge once on #report."""
    started_s = time.monotonic()
    images = QUICK_IMAGES if options.quick else IMAGES
    setting = zoo_setting(options, NETWORK, exits=EXITS, images=images)
    steps = (
        RUNGS
        if options.quick
        else round(FIRST_EPOCHS * setting.steps_per_epoch * sum(KEPT_SHARE**-rung for rung in range(RUNGS)))
    )
    settings = ZooSettings(steps=steps, cache_bytes=1e9, grid=GRID[::10] if options.quick else GRID)
    zoo = trained_in_processes(options, setting, ZOO, settings, images=images)
    before_s = time.monotonic()
    minutes = (before_s - started_s) / 60
    settings = replace(settings, grid=TWO, merge=False)
    two = trained_in_processes(options, setting, "two", settings, images=images)
    two_minutes = (time.monotonic() - before_s) / 60
    placed, gains = _placed(options, setting, zoo, two)
    figures = {
        "minutes": minutes,
        "branches": float(zoo.trained),
        "branches_per_minute": zoo.trained / minutes,
        "processes": float(process_count()),
        "exits_left": float(len(zoo.grown)),
        "minutes_of_two_structures": two_minutes,
        "mae_gain_points_min": min(gains),
        "mae_gain_points_max": max(gains),
    }
    data = f"{len(setting.source)} images of cifar10/train.zip; chosen on test.zip#calibration, mAE on #report"
    return BenchOutcome(figures, [*_cut_points(zoo), *placed], data)


def _cut_points(zoo: Cultivated) -> Iterator[dict[str, object]]:
    for position, steps in zoo.steps.items():
        grown = [one for one in zoo.grown if one.exit.position == position]
        siblings = sum(one.exit.branch.endswith("-merged") for one in grown)
        yield {
            "what": "cut point",
            "position": position,
            "steps": steps,
            "left": len(grown) - siblings,
            "siblings": siblings,
            "best_accuracy_calibration": 100 * max(one.accuracy for one in grown),
        }


def _placed(
    options: BenchOptions, setting: ZooSetting, zoo: Cultivated, two: Cultivated
) -> tuple[list[dict[str, object]], list[float]]:
    """Placements from both sets at each budget, and the zoo's gains in points."""
    images, labels = prepared(setting.model, load_cifar_part(options, "report"))
    every = max(1, len(labels) // QUICK_IMAGES) if options.quick else 1
    grown = [*zoo.grown, *two.grown]
    accuracies = exit_accuracies(setting, [one.exit for one in grown], (images[::every], labels[::every]))
    ids = [one.exit.id for one in grown]
    judged = {
        "zoo": dict(zip(ids[: len(zoo.grown)], accuracies, strict=False)),
        "two": dict(zip(ids[len(zoo.grown) :], accuracies[len(zoo.grown) :], strict=True)),
    }
    rows: list[dict[str, object]] = []
    gains = []
    for budget in BUDGETS_BYTES:
        reached = {}
        for name, found in (("zoo", zoo), ("two", two)):
            row = _placement(setting, found, judged[name], budget)
            reached[name] = float(str(row["mae_report"]))
            rows.append({"what": "placement", "candidates": name, **row})
        gains.append(reached["zoo"] - reached["two"])
    return rows, gains


def _placement(
    setting: ZooSetting, found: Cultivated, judged: Mapping[str, float], budget: int | None
) -> dict[str, object]:
    exits = [grown.exit for grown in found.grown]
    chosen_by = setting.candidates(exits, [grown.accuracy for grown in found.grown])
    placement = place(chosen_by, full_time=float(setting.full_macs), memory_bytes=budget)
    kept = [exit_ for exit_ in exits if exit_.id in placement.exits]
    on_report = setting.candidates(kept, [judged[exit_.id] for exit_ in kept])
    return {
        "memory_bytes": budget,
        "exits": placement.exits,
        "bytes": placement.memory_bytes,
        "mae_calibration": 100 * placement.expectation,
        "mae_report": 100 * expectation(on_report, full_time=float(setting.full_macs)),
        "accuracy_report": [100 * judged[exit_.id] for exit_ in kept],
    }
