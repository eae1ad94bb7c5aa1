"""Servers of other skill than one network: an ensemble of four, and a specialist that knows half of the classes.

The networks run by torch, in fp32: packaging does not change the answers of the full path beyond rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.hard_samples.judging import SENT, Pair, mean_and_low
from benchmarks.runner.run import BenchOptions
from device_sdk.data.inputs import RawInputs
from device_sdk.policies.deciding.decider_fitting import Fitted, Viewed, fit_best_logistic
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.plan import Entropy, Logistic
from packager.inputs.model_loader import load_model

MEMBERS = ("resnet20_cifar10", "resnet32_cifar10", "resnet44_cifar10", "resnet56_cifar10")
KNOWN = 5  # the classes of the specialist, the first of them
_BATCH = 64
_NEVER = 30.0  # taken off the logits of classes that the specialist does not know


def ensemble(options: BenchOptions, images: npt.NDArray[np.uint8]) -> Array:
    """Logits of four networks together, the mean of their log-probabilities: [count, classes]."""
    found = []
    with options.progress.task("answer with the ensemble", len(MEMBERS)) as task:
        for name in MEMBERS:
            found.append(_log_probabilities(_logits(options, name, images)))
            task.advance()
    return np.asarray(np.mean(found, axis=0), np.float32)


def specialist(logits: Array) -> Array:
    """A network that knows the first half of the classes and always answers with one of them: [count, classes]."""
    masked = logits.copy()
    masked[:, KNOWN:] -= _NEVER
    return masked


def fitted_for(
    small: Array, views: Array, there: npt.NDArray[np.bool_], labels: npt.NDArray[np.int64]
) -> Fitted[Logistic]:
    """Our decider for a server that is right ``there`` [count]; ``views``: the device's logits for them."""
    here, seen = small.argmax(axis=-1) == labels, views.argmax(axis=-1) == labels
    shown = Viewed(views, seen | ~there, seen & ~there)
    found = fit_best_logistic(small, here | ~there, losses=here & ~there, views=shown)
    assert found is not None
    return found


def server_rows(
    name: str, fitted: Fitted[Logistic], small: Array, pair: Pair, large: npt.NDArray[np.bool_]
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """``NAME_minus_entropy_…``: our decider against the entropy, and ``NAME_minus_large_…``: against one large network.

    ``large``: mask of its right answers [count]; all on #report.
    """
    eases = {"ours": ease(fitted.decider, small), "entropy": ease(Entropy(0.0), small)}
    figures = pair.gains(name, eases["ours"], eases["entropy"])
    for share in SENT:
        kept = round(100 - 100 * share)
        change = pair.system(eases["ours"], share).astype(float) - large
        figures[f"{name}_minus_large_{kept}"], figures[f"{name}_minus_large_low_{kept}"] = mean_and_low(change)
    rows: list[dict[str, object]] = [{"what": f"{name} alone", "accuracy_100": 100 * float(pair.server.mean())}]
    for what, own in eases.items():
        row: dict[str, object] = {"what": f"{name}: {what}", "area": 100 * pair.area(own)}
        rows.append(row | {f"accuracy_{100 - 100 * s:.0f}": 100 * float(pair.system(own, s).mean()) for s in SENT})
    return figures, rows


def beaten(figures: dict[str, float], name: str, shares: Sequence[float] = SENT) -> float:
    """The number of coverages at which the lower bound of the gain over the entropy is above 0."""
    lows = [figures[f"{name}_minus_entropy_low_{round(100 - 100 * share)}"] for share in shares]
    return float(sum(low > 0 for low in lows))


def _logits(options: BenchOptions, name: str, images: npt.NDArray[np.uint8]) -> Array:
    model = load_model(f"zoo:{name}", weights=options.data_folder / "pretrained" / f"{name}.safetensors")
    inputs = RawInputs(list(images), model.preprocessing.of_images(), model.image_shape)
    model.module.eval()
    with torch.inference_mode():
        batches = [np.arange(at, min(at + _BATCH, len(inputs))) for at in range(0, len(inputs), _BATCH)]
        return np.concatenate([model.module(torch.from_numpy(inputs.take(one))).numpy() for one in batches])


def _log_probabilities(logits: Array) -> Array:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))
