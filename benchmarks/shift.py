"""Shifted data: accuracy gained by the prior that a device estimates from unlabelled samples of its own class mix."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import numpy.typing as npt

from benchmarks.real_size import data as real_size
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.reference_bundles import package_pretrained
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.data.inputs import Inputs, RawInputs
from device_sdk.execution.loaded_segments import logit_offsets
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.gathering import find_prior, fit_temperature
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.plan import Plan, Prior

TARGETS = {
    "prior_gain_01_low_points": Target(minimum=5.0),
    "prior_gain_10_low_points": Target(minimum=0.5),
    "worst_mix_points": Target(minimum=-0.3),
    "unmixed_loss_points": Target(maximum=0.1),
    "lite0_ten_classes_accuracy": Target(minimum=97.0),
    "latency_added_share": Target(maximum=0.01),
}
ALPHAS = (0.1, 0.3, 1.0)  # of the Dirichlet distribution of mixes
MIXES, QUICK_MIXES = 100, 10  # of each
PRIVATE = 100  # unlabelled samples of a device
BATCH, QUICK_IMAGES = 64, 400
ROUNDS, QUICK_ROUNDS = 400, 40
_LEAST_RATIO = 1e-6  # keeps the logarithm of a vanishing share finite

Floats = npt.NDArray[np.float64]
Labels = npt.NDArray[np.int64]


def run(options: BenchOptions) -> BenchOutcome:
    """Mixes are drawn; a prior is estimated on 100 unlabelled samples of one half of #report, and judged on the other.

    The temperature is fitted to #calibration. The other half's accuracy is weighted by the mix. ``true_mix_gain_…``: of
    a prior made of the true mix, which bounds what any estimate can gain on average.
    """
    cifar = options.data_folder / "cifar10" / "test.zip"
    made = package_pretrained(options, "resnet56_cifar10", train=False, max_span=1)  # the full model alone counts
    bundle = Bundle.open(made.folder)
    logits, labels = _answered(options, bundle, f"{cifar}#report")
    temperature = fit_temperature(*_answered(options, bundle, f"{cifar}#calibration"))
    figures: dict[str, float] = {"temperature": temperature}
    table: list[dict[str, object]] = []
    gains: list[float] = []
    for alpha in ALPHAS:
        found, bound = _gains(logits, labels, temperature, alpha, QUICK_MIXES if options.quick else MIXES)
        gains += found
        low, high = _interval(found)
        name = f"prior_gain_{alpha * 10:02.0f}"
        figures |= {f"{name}_points": float(np.mean(found)), f"{name}_low_points": low}
        figures[f"true_mix_gain_{alpha * 10:02.0f}_points"] = float(np.mean(bound))
        row = {"what": f"Dirichlet {alpha:g}", "gain_points": float(np.mean(found)), "worst_points": min(found)}
        row |= {"true_mix_gain_points": float(np.mean(bound)), "true_mix_worst_points": min(bound)}
        table.append(row | {"low_points": low, "high_points": high, "mixes": len(found)})
    unmixed, _ = _gains(logits, labels, temperature, np.inf, QUICK_MIXES if options.quick else MIXES)
    figures |= {"worst_mix_points": min(gains), "unmixed_loss_points": -float(np.mean(unmixed))}
    table.append({"what": "uniform", "gain_points": float(np.mean(unmixed)), "worst_points": min(unmixed)})
    figures |= _ten_classes(options) | {"latency_added_share": _latency_added(options, bundle)}
    return BenchOutcome(figures, table, "cifar10/test.zip#report, halves; imagenette/val.zip#report")


def _answered(options: BenchOptions, bundle: Bundle, part: str) -> tuple[Floats, Labels]:
    """Logits [count, classes] of the full model, and labels [count]."""
    found = load_dataset(part)
    shape = bundle.manifest.cut_points[0].tensors[0].shape
    images = list(found.images[:QUICK_IMAGES] if options.quick else found.images)
    inputs = RawInputs(images, bundle.manifest.preprocessing.of_images(), (shape[0], shape[1], shape[2]))
    return _logits(bundle, inputs), found.labels[: len(images)]


def _logits(bundle: Bundle, inputs: Inputs) -> Floats:
    runtime = OnnxRuntime(threads=1)
    with closing(runtime.load(bundle.stretch(bundle.supernet.original.edges))) as session:
        places = np.arange(len(inputs))
        batches = [places[at : at + BATCH] for at in range(0, len(places), BATCH)]
        return np.concatenate([session.run([inputs.take(batch)])[-1] for batch in batches]).astype(np.float64)


def _gains(
    logits: Floats, labels: Labels, temperature: float, alpha: float, mixes: int
) -> tuple[list[float], list[float]]:
    """Points gained on each of ``mixes`` drawn from a Dirichlet distribution, by the estimated and by the true mix.

    Infinite ``alpha``: uniform mixes.
    """
    classes = logits.shape[1]
    halves = np.arange(len(labels)) % 2
    gains: tuple[list[float], list[float]] = ([], [])
    for seed in range(mixes):
        random = np.random.default_rng([seed, round(100 * min(alpha, 100))])
        mix = np.full(classes, 1 / classes) if np.isinf(alpha) else random.dirichlet(np.full(classes, alpha))
        drawn = random.choice(classes, size=PRIVATE, p=mix)
        private = [int(random.choice(np.flatnonzero((labels == label) & (halves == 0)))) for label in drawn]
        true = Prior(tuple(np.log(np.maximum(mix * classes, _LEAST_RATIO)).tolist()), temperature)
        without = _weighted(logits, labels, halves == 1, mix)
        for found, prior in zip(gains, (find_prior(logits[private], None, temperature=temperature), true), strict=True):
            found.append(_weighted(logits, labels, halves == 1, mix, prior) - without)
    return gains


def _weighted(
    logits: Floats, labels: Labels, judged: npt.NDArray[np.bool_], mix: Floats, prior: Prior | None = None
) -> float:
    """Accuracy in percent on the ``judged`` samples, classes weighted by ``mix``."""
    offsets = 0.0 if prior is None else logit_offsets(prior)
    right = (logits + offsets).argmax(axis=1) == labels
    shares = [right[judged & (labels == label)].mean() for label in range(len(mix))]
    return 100 * float(np.dot(mix, shares))


def _interval(values: Sequence[float]) -> tuple[float, float]:
    """95 % of the mean, by bootstrap over mixes."""
    drawn = np.random.default_rng(0).integers(0, len(values), (2000, len(values)))
    low, high = np.percentile(np.asarray(values)[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)


def _ten_classes(options: BenchOptions) -> dict[str, float]:
    """EfficientNet-Lite0 over 1,000 classes on a device that sees ten: estimated on #search, judged on #report."""
    bundle = Bundle.open(real_size.bundle(options, trained=False))
    private, report = (real_size.photographs(options, part) for part in ("search", "report"))
    preprocessing = bundle.manifest.preprocessing.of_images()
    prior = find_prior(_logits(bundle, private.inputs(preprocessing)), None)
    logits = _logits(bundle, report.inputs(preprocessing))
    offsets = 0.0 if prior is None else logit_offsets(prior)
    right = [100 * float((one.argmax(axis=1) == report.labels).mean()) for one in (logits, logits + offsets)]
    return {"lite0_without_prior_accuracy": right[0], "lite0_ten_classes_accuracy": right[1]}


def _latency_added(options: BenchOptions, bundle: Bundle) -> float:
    """Of calls of the full model with a prior over those without, in turns, less 1."""
    workspace, plan = Workspace(bundle, OnnxRuntime(threads=1)), Plan(bundle.supernet.original)
    classes = bundle.supernet.cut_points[-1].tensors[-1].shape[-1]
    plans = {"without": plan, "with": plan.with_prior(Prior((0.5,) * classes))}
    loaded = {name: workspace.load_plan(one) for name, one in plans.items()}
    spec = bundle.manifest.cut_points[0].tensors[0]
    sample = np.random.default_rng(0).normal(size=(1, *spec.shape)).astype(spec.dtype)
    try:
        timed = measure_interleaved(
            {name: lambda one=one: one.run(sample) for name, one in loaded.items()},  # type: ignore[misc]
            rounds=QUICK_ROUNDS if options.quick else ROUNDS,
            warmup=5,
            reference="without",
        )
    finally:
        for one in loaded.values():
            one.close()
    ratio = timed["with"].ratio
    assert ratio is not None
    return ratio.value - 1
