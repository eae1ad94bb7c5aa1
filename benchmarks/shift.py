"""Shifted data: accuracy gained by adapting on a device's class mix instead of on uniform classes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.reference_bundles import answers, load_part
from device_sdk.data.datasets import ImageDataset, dirichlet_shift
from device_sdk.policies.adaptation import AdaptationSettings
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.cost import Budget
from pathweave.bench import BenchOptions, BenchOutcome, Target

TARGETS = {"shift_gain_points": Target(minimum=0.0)}
LATENCY_RATIO = 0.6  # budget, of the full model's latency
ALPHA, UNIFORM = 0.1, 1e6  # of the Dirichlet distribution (AdaptiveNet §7.4 draws its edge data so)
SHIFTS, QUICK_SHIFTS = 12, 2  # what a mix gains differs by 2 points from one to the next
SAMPLES = 100  # private ones: the most frequent class has about 50 in #search
HOLDOUT_SHARE = 0.1
RESAMPLES = 2000
QUICK_LIMIT_S = 2.0


@dataclass(frozen=True)
class Shift:
    """One class mix [classes], and the correctness of the two subnets on the images of #report [count]."""

    seed: int
    mix: npt.NDArray[np.float64]
    shifted: npt.NDArray[np.bool_]
    uniform: npt.NDArray[np.bool_]
    subnets: tuple[str, str]
    seconds: float


def run(options: BenchOptions) -> BenchOutcome:
    """For every shift, adapt on shifted and on uniform samples of #search; test both on #report in the shift's mix."""
    state = options.work_folder / "state"
    count = QUICK_SHIFTS if options.quick else SHIFTS
    with AdaptiveModel.open(adapted_bundle(options), state_folder=state) as model:
        search, report = (load_part(options, part, model) for part in ("search", "report"))
        budget = Budget(latency_ratio=LATENCY_RATIO)
        with options.progress.task("shifts", count) as task:
            found = []
            for seed in range(count):
                found.append(_shift(model, search, report, budget, seed, options))
                task.advance()
    gains, low, high = _gains(found, report.labels)
    figures = {
        "shift_gain_points": float(np.mean(gains)),
        "shift_gain_low_points": low,
        "shift_gain_high_points": high,
        "shifts_gained": sum(gain > 0 for gain in gains),
    }
    table: list[dict[str, object]] = [
        {
            "what": f"shift {one.seed}",
            "gain_points": gain,
            "accuracy_shifted": _weighted(one.shifted, report.labels, one.mix),
            "accuracy_uniform": _weighted(one.uniform, report.labels, one.mix),
            "mix": np.round(one.mix, 2).tolist(),
            "subnet_shifted": one.subnets[0],
            "subnet_uniform": one.subnets[1],
            "seconds": one.seconds,
        }
        for one, gain in zip(found, gains, strict=True)
    ]
    data = f"searched on {SAMPLES} images of cifar10/test.zip#search, tested on #report weighted by the same class mix"
    return BenchOutcome(figures, table, data)


def _shift(
    model: AdaptiveModel,
    search: ImageDataset,
    report: ImageDataset,
    budget: Budget,
    seed: int,
    options: BenchOptions,
) -> Shift:
    limit_s = QUICK_LIMIT_S if options.quick else None
    settings = AdaptationSettings(seed=seed, holdout_share=HOLDOUT_SHARE, time_limit_s=limit_s)
    right, subnets, seconds = [], [], 0.0
    drawn = [dirichlet_shift(search, alpha=alpha, count=SAMPLES, seed=seed) for alpha in (ALPHA, UNIFORM)]
    for private in drawn:
        found = model.adapt(private.images, private.labels, budget, settings=settings, progress=options.progress)
        right.append(np.concatenate([one.output.argmax(axis=1) for one in answers(model, report)]) == report.labels)
        subnets.append(str(found.subnet))
        seconds += found.seconds
    mix = np.bincount(drawn[0].labels, minlength=len(report.class_names)) / SAMPLES
    return Shift(seed, mix, right[0], right[1], (subnets[0], subnets[1]), seconds)


def _weighted(values: npt.NDArray[np.generic], labels: npt.NDArray[np.int64], mix: npt.NDArray[np.float64]) -> float:
    """The mean of ``values`` [count] in percent, classes weighted by ``mix`` [classes]."""
    return 100 * float(
        sum(share * np.mean(values[labels == label], dtype=np.float64) for label, share in enumerate(mix) if share)
    )


def _gains(found: list[Shift], labels: npt.NDArray[np.int64]) -> tuple[list[float], float, float]:
    """The gain of every shift in points, and the 95 % interval of their mean, by a paired bootstrap."""
    weights = np.stack([_image_weights(one, labels) for one in found])  # [shifts, images], in points
    random = np.random.default_rng(0)
    times = np.zeros((RESAMPLES, len(labels)))  # that an image is drawn; as many of each class as there are
    for label in np.unique(labels):
        of_class = np.flatnonzero(labels == label)
        times[:, of_class] = random.multinomial(len(of_class), np.full(len(of_class), 1 / len(of_class)), RESAMPLES)
    drawn = random.integers(0, len(found), size=(RESAMPLES, len(found)))
    means = np.take_along_axis(times @ weights.T, drawn, axis=1).mean(axis=1)
    low, high = np.percentile(means, [2.5, 97.5])
    return weights.sum(axis=1).tolist(), float(low), float(high)


def _image_weights(one: Shift, labels: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Contribution of each image to the gain of a shift, in points: [count]."""
    of_class = np.bincount(labels, minlength=len(one.mix))
    share = np.divide(one.mix, of_class, out=np.zeros_like(one.mix), where=of_class > 0)
    weights: npt.NDArray[np.float64] = 100 * (one.shifted.astype(np.float64) - one.uniform) * share[labels]
    return weights
