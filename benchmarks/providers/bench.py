"""Providers: plans over two of them at once against each alone, and twenty failures."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.providers import faults, plans
from benchmarks.real_size import data
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import load_part
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.samples import Labels, Samples

TARGETS = {
    "mixed_prediction_error": Target(maximum=0.05),
    "plan_over_best_single": Target(maximum=1.02),
    "injected_failures": Target(minimum=20.0),
    "reported_failures": Target(minimum=20.0),
    "silent_fallbacks": Target(maximum=0.0),
}
SAMPLES, QUICK_SAMPLES = 300, 60


def run(options: BenchOptions) -> BenchOutcome:
    """1. profile two networks at two homes and predict fresh mixed subnets; 2. adapt to budgets, and compare the plans
    with the same blocks at one home; 3. bring about twenty failures of providers.

    The second home is OpenVINO's, a provider of its own, where its plug-in takes this processor (``second_home``).
    """
    predicted, adapted, ladders = list[plans.Predicted](), list[plans.Compared](), list[plans.Compared]()
    table: list[dict[str, object]] = []
    for name, folder in _networks(options):
        state = options.work_folder / f"state-{name}"
        with AdaptiveModel.open(folder, state_folder=state, homes=(plans.FIRST, plans.second_home())) as model:
            predicted += plans.predictions(name, model, options)
            table += plans.crossings(name, model.profile(progress=options.progress))
            samples, labels = _samples(name, model, options)
            adapted += plans.chosen(name, model, samples, labels, options)
            ladders += plans.rungs(name, model, options)
    failures = list(faults.all_faults(_networks_first(options), options.work_folder))
    figures = plans.figures_of(predicted, adapted, ladders) | faults.figures_of(failures)
    table += [_predicted_row(one) for one in predicted]
    table += [_compared_row(one) for one in (*adapted, *ladders)]
    table += [one.row() for one in failures]
    return BenchOutcome(
        figures, table, data=f"{plans.FIRST} and {plans.second_home()}; cifar10/test.zip, imagenette/val.zip: #search"
    )


def _networks(options: BenchOptions) -> Iterator[tuple[str, Path]]:
    yield "resnet56", adapted_bundle(options, renditions=("fp32", "int8"))
    yield "lite0", data.bundle(options, trained=False)


def _networks_first(options: BenchOptions) -> Path:
    return next(iter(_networks(options)))[1]


def _samples(name: str, model: AdaptiveModel, options: BenchOptions) -> tuple[Samples, Labels]:
    count = QUICK_SAMPLES if options.quick else SAMPLES
    if name == "lite0":
        photographs = data.photographs(options, "search")
        return photographs.images[:count], photographs.labels[:count]
    search = load_part(options, "search", model)
    return search.images[:count], search.labels[:count]


def _predicted_row(one: plans.Predicted) -> dict[str, object]:
    return {
        "network": one.network,
        "what": "mixed subnet",
        "crossings": one.crossings,
        "predicted_ms": one.predicted_ms,
        "measured_ms": one.measured_ms,
        "error": one.error,
    }


def _compared_row(one: plans.Compared) -> dict[str, object]:
    homes = [edge.home or plans.FIRST for edge in one.plan.subnet.edges]
    return {
        "network": one.network,
        "what": one.what,
        "latency_ms": one.latency_ms,
        **{f"{name}_ms": ms for name, ms in one.single_ms.items()},
        "over_best_single": one.over_best_single,
        **({} if one.tight is None else {"over_best_single_without_pauses": one.tight}),
        "blocks": {name: homes.count(name) for name in (plans.FIRST, plans.second_home())},
    }
