"""Search on three networks: seconds and subnets until within 0.2 points of the best known; gaps to the optimum."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from benchmarks.real_size.data import bundle as lite0_bundle
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.search.networks import SETTINGS, Network, cifar_part, photographs_part
from benchmarks.search.runs import SearchTrace
from benchmarks.search.times import Times, time_ratios
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import package_pretrained

TUNED_ON = "resnet56"  # the strategy's settings were chosen on it; the other networks were not seen
TARGETS = {
    "time_vs_adaptivenet_high_resnet56": Target(maximum=0.2),
    "time_vs_best_rival_high_resnet56": Target(maximum=1.0),
    "time_vs_best_rival_high_resnet44": Target(maximum=1.0),
    "time_vs_best_rival_high_lite0": Target(maximum=1.0),
}
NEAR = 0.002  # of the best known accuracy
SEEDS, QUICK_SEEDS = range(3), range(2)
LIMIT_S, QUICK_LIMIT_S = 60.0, 1.0  # of every run: strategies get equal seconds
PHOTOGRAPHS, REPORTED = 200, 500


def run(options: BenchOptions) -> BenchOutcome:
    """Searches on #search take turns, each with an evaluator of its own that has reuse on.

    Loading sessions is not timed: all runs use the same ones. Best known is the best that any of them found within the
    budget. Every strategy has the same seconds; a rival's run that does not get there counts with all of them, which is
    less than it needs, and one of ours as infinitely long. Targets stand on the upper bounds of the ratios
    (``times.ratio_high``). On ResNet-20, where all subnets can be enumerated, strategies get the work of so many full
    evaluations instead of time.
    """
    seeds = QUICK_SEEDS if options.quick else SEEDS
    gaps = _resnet20(options).gaps(seeds)
    table: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    for name in ("resnet20",) if options.quick else ("resnet56", "resnet44", "lite0"):
        times, rows = _searched(_network(name, options), seeds, options)
        figures |= {f"{figure}_{name}": value for figure, value in time_ratios(times).items()}
        figures[f"evaluations_vs_evolution_{name}"] = _ratio(rows, "subnets", "evolution")
        table += [{"network": name, **row} for row in rows.values()]
    figures |= {f"gap_to_exact_points_{name}": gap for name, gap in gaps.items()}
    return BenchOutcome(
        figures, table, data="cifar10/test.zip#search, imagenette/val.zip#search; answers of seed 0 on #report"
    )


def _network(name: str, options: BenchOptions) -> Network:
    """ResNet-56 and EfficientNet-Lite0 from the zoo's trained branches; ResNet-44 without any training."""
    if name == "resnet20":
        return _resnet20(options)
    if name == "lite0":
        folder = lite0_bundle(options, trained=True)
        search = photographs_part(folder, "search", options, count=PHOTOGRAPHS)
        report = photographs_part(folder, "report", options, count=REPORTED)
        return Network.prepared(name, folder, search, report, options.progress)
    untrained = name == "resnet44"
    folder = (
        package_pretrained(options, "resnet44_cifar10", train=False).folder if untrained else adapted_bundle(options)
    )
    search, report = (cifar_part(folder, part, options) for part in ("search", "report"))
    return Network.prepared(name, folder, search, report, options.progress)


def _resnet20(options: BenchOptions) -> Network:
    folder = adapted_bundle(replace(options, quick=True))
    search, report = (cifar_part(folder, part, options) for part in ("search", "report"))
    return Network.prepared("resnet20", folder, search, report, options.progress)


def _searched(
    network: Network, seeds: Sequence[int], options: BenchOptions
) -> tuple[dict[str, Times], dict[str, dict[str, object]]]:
    """Times and a row per strategy."""
    limit_s = QUICK_LIMIT_S if options.quick else LIMIT_S
    runs = network.searched(dict.fromkeys(SETTINGS, limit_s), seeds, options.progress)
    known = max(one.best for one in runs)
    reports = network.on_report([one for one in runs if one.seed == 0])
    network.close()
    of = {name: [one for one in runs if one.strategy == name] for name in SETTINGS}
    times = {name: Times.of(own, known - NEAR, limit_s) for name, own in of.items()}
    rows = {
        name: _row(times[name], own, known) | {"strategy": name, "report_accuracy_seed_0": reports.get(name)}
        for name, own in of.items()
    }
    return times, rows


def _row(times: Times, own: Sequence[SearchTrace], known: float) -> dict[str, object]:
    hits = [one.first(known - NEAR) for one in own]
    seconds = times.seconds
    return {
        "reached": times.reached,
        "seeds": len(own),
        "seconds": median(seconds),
        "seconds_least": min(seconds),
        "seconds_most": max(seconds),
        "subnets": median([hit.subnets if hit else one.subnets for hit, one in zip(hits, own, strict=True)]),
        "limit_s": times.limit_s,
        "run_s": median([one.seconds for one in own]),
        "best_accuracy": 100 * median([one.best for one in own]),
        "best_accuracy_least": 100 * min(one.best for one in own),
        "best_accuracy_most": 100 * max(one.best for one in own),
        "subnets_in_all": median([one.subnets for one in own]),
    }


def _ratio(rows: Mapping[str, Mapping[str, object]], figure: str, other: str) -> float:
    ours, theirs = (float(str(rows[name][figure])) for name in ("pathweave", other))
    return ours / theirs
