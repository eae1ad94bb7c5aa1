"""Sure: what adaptation chooses against the ladder and the best seed, idle and busy, and what its calls take."""

from __future__ import annotations

from statistics import median

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.sure.adapting import Run, adapted
from benchmarks.sure.figures import JudgedNetwork, figures_of, rows_of, trained_minus_untrained
from benchmarks.sure.judging import Judge
from benchmarks.sure.ladder import ladder, worth_judging
from benchmarks.sure.networks import TRAINED, UNTRAINED, Skipped, SureNetwork, networks
from benchmarks.sure.serving import QUICK_SERVED_S, RATES_HZ, SERVED_S, NotServed, Served, served
from device_sdk.bundles.bundle import Bundle
from device_sdk.runtimes import runs_on

TARGETS = {
    "worst_below_ladder_points": Target(maximum=1.0),
    "worst_below_best_seed_points": Target(maximum=2.0),
    "over_budget_share": Target(maximum=0.02),
    "served_over_budget_share": Target(maximum=0.05),
    "trained_minus_untrained_points": Target(minimum=0.0),
    "trained_minus_untrained_low_points": Target(minimum=-0.5),
    "refused_runs": Target(maximum=0.0),
    "networks": Target(minimum=5.0),
}
BUDGET_RATIOS, QUICK_BUDGET_RATIOS = (0.7, 0.45, 0.3), (0.45,)


def run(options: BenchOptions) -> BenchOutcome:
    """Subnets are chosen on #search, and looked at once on #report.

    Each network in turn: 1. adapt with every budget and seed, on an idle machine and with a busy process on every core,
    which ends before anything is judged; 2. measure all that was chosen and the whole ladder in one
    interleaved run, quiet; 3. answer the samples of #report with what was chosen, and with the rungs of the largest
    inputs that keep a budget; 4. adapt as an app that makes a call now and then, and time its calls: each budget at one
    rate, another one for each network.
    """
    budget_ratios = QUICK_BUDGET_RATIOS if options.quick else BUDGET_RATIOS
    judged: list[JudgedNetwork] = []
    calls: list[Served] = []
    table: list[dict[str, object]] = []
    for number, network in enumerate(networks(options)):
        if isinstance(network, Skipped):
            table.append({"network": network.name, "what": "skipped", "reason": network.reason})
            continue
        state = options.work_folder / network.name.replace(" ", "-")
        runs = adapted(network, state, budget_ratios, options.progress)
        judged.append(judged_network(network, runs, budget_ratios))
        seconds = QUICK_SERVED_S if options.quick else SERVED_S
        wanted = [(ratio, RATES_HZ[(number + n) % len(RATES_HZ)]) for n, ratio in enumerate(budget_ratios)]
        own = list(served(network, state / "idle", wanted, seconds=seconds, progress=options.progress))
        calls += [one for one in own if isinstance(one, Served)]
        table += [row | {"time_limit_s": network.time_limit_s} for row in rows_of(judged[-1])]
        table += [_served_row(network.name, one) for one in own]
    figures = {"networks": float(len(judged)), **figures_of(judged, calls)}
    figures["served_plans"] = float(len(calls))
    figures |= {f"seeds_{one.name.replace(' ', '_')}": float(one.seeds) for one in judged}
    by_name = {one.name: one for one in judged}
    if TRAINED in by_name and UNTRAINED in by_name:
        figures |= trained_minus_untrained(by_name[TRAINED], by_name[UNTRAINED])
    return BenchOutcome(figures, table, data="cifar10/test.zip, imagenette/val.zip: #search, judged on #report")


def judged_network(network: SureNetwork, runs: list[Run], budget_ratios: tuple[float, ...]) -> JudgedNetwork:
    """All that was chosen, and the ladder, in one interleaved run; only what a figure compares answers the samples."""
    bundle = Bundle.open(network.folder, accepts=runs_on("onnxruntime"))
    rungs = ladder(bundle.supernet)
    chosen = list(dict.fromkeys(one.subnet for one in runs if one.subnet is not None))
    judge = Judge(bundle)
    try:
        ratios = judge.ratios([*chosen, *rungs])
        compared = dict.fromkeys([*chosen, *worth_judging(ratios, budget_ratios, rungs)])
        right = judge.right(list(compared), network.report)
    finally:
        judge.close()
    return JudgedNetwork(network.name, runs, rungs, ratios, right)


def _served_row(name: str, one: Served | NotServed) -> dict[str, object]:
    row: dict[str, object] = {"network": name, "what": f"served within {one.budget_ratio:g}"}
    if isinstance(one, NotServed):
        return row | {"refusal": one.reason}
    return row | {
        "calls_per_second": one.rate_hz,
        "budget_ms": one.budget_ms,
        "calls": len(one.call_ms),
        "call_median_ms": median(one.call_ms),
        "unprepared_median_ms": median(one.inner_ms),
        "over_budget_share": one.inner_over_share,
        "over_budget_prepared_share": one.over_share,
    }
