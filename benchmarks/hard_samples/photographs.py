"""Hard photographs: EfficientNet-Lite0 on a device with Lite2 at a server, by the product's deciders.

The plain networks in fp32 answer, run by torch: packaging does not change the answers of the full path beyond rounding.
Their answers stay in the cache, as they take minutes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch

from benchmarks.hard_samples.judging import SENT, Pair
from benchmarks.real_size.photographs import load_photographs
from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import cache_folder
from device_sdk.data.inputs import VIEWS, RawInputs, views
from device_sdk.policies.deciding.decider_fitting import (
    TOP_TWO,
    Viewed,
    cross_fitted_eases,
    fit_best_logistic,
    fit_logistic,
    fit_pool,
)
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import ease
from device_sdk.supernet.plan import Decider, Entropy, Margin, MaxConfidence
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_loader import load_model
from packager.inputs.pixels import Pixels

DEVICE, SERVER = "efficientnet_lite0", "efficientnet_lite2"
TUNING, JUDGED = ("search", "calibration"), ("report",)
QUICK_IMAGES = 30
_BATCH = 16
_PIXELS = Pixels(None, "bicubic", "whole")


def photograph_rows(options: BenchOptions) -> tuple[dict[str, float], list[dict[str, object]]]:
    """Deciders are fitted and tuned on #search and #calibration of Imagenette's val.zip, and judged once on #report."""
    labels = {parts: _labels(options, parts) for parts in (TUNING, JUDGED)}
    found = {
        (name, parts): _logits(options, name, parts, viewed=False)[0] for name in (DEVICE, SERVER) for parts in labels
    }
    tuning, report = (_pair(found[DEVICE, parts], found[SERVER, parts], labels[parts]) for parts in (TUNING, JUDGED))
    logits, new = found[DEVICE, TUNING], found[DEVICE, JUDGED]
    viewed = _logits(options, DEVICE, TUNING, viewed=True)
    views_right = viewed.argmax(axis=-1) == labels[TUNING]
    shown = Viewed(viewed, views_right | ~tuning.server, views_right & ~tuning.server)
    ours = fit_best_logistic(logits, tuning.easy, losses=tuning.losses, views=shown)
    top_two = fit_logistic(logits, tuning.here, features=TOP_TWO, by_class=False)
    top_two_eases = cross_fitted_eases(logits, tuning.here, features=TOP_TWO, by_class=False)
    deciders: dict[str, tuple[Decider | None, npt.NDArray[np.float64] | None]] = {
        "confidence": (MaxConfidence(0.0), None),
        "entropy": (Entropy(0.0), None),
        "margin": (Margin(0.0), None),
        "top-2 regression (HI)": (top_two, top_two_eases),
        "ours": (None, None) if ours is None else (ours.decider, ours.eases),
    }
    rows: list[dict[str, object]] = []
    for name, (decider, eases) in deciders.items():
        if decider is not None:
            tuned = ease(decider, logits) if eases is None else eases
            rows.append({"what": f"photographs: {name}", **_accuracies(ease(decider, new), tuned, report)})
    for name, right in (("device", report.here), ("server", report.server), ("oracle", report.here | report.server)):
        rows.append({"what": f"photographs: {name}", "accuracy_100": 100 * float(right.mean())})
    figures: dict[str, float] = {}
    if ours is not None:
        figures |= report.gains("photographs_ours", ease(ours.decider, new), ease(Entropy(0.0), new))
    pool = fit_pool(logits, found[SERVER, TUNING], labels[TUNING])
    if pool is not None and ours is not None:
        right = pool.pooled(new, found[SERVER, JUDGED]).argmax(axis=1) == labels[JUDGED]
        pooled, eases = Pair(report.here, right), ease(ours.decider, new)
        figures |= report.pool_gains("photographs", pooled, eases)
        rows.append({"what": "photographs: pooled: ours", **_accuracies(eases, ours.eases, pooled)})
    return figures, rows


def _accuracies(new: npt.NDArray[np.float64], tuned: npt.NDArray[np.float64], report: Pair) -> dict[str, object]:
    found: dict[str, object] = {"area": 100 * report.area(new)}
    for share in SENT:
        kept = round(100 - 100 * share)
        found[f"accuracy_{kept}"] = 100 * float(report.system(new, share).mean())
        found[f"sent_by_threshold_{kept}"] = 100 * float((new < np.quantile(tuned, share)).mean())
    return found


def _pair(small: Array, large: Array, labels: npt.NDArray[np.int64]) -> Pair:
    return Pair(small.argmax(axis=1) == labels, large.argmax(axis=1) == labels)


def _labels(options: BenchOptions, parts: tuple[str, ...]) -> npt.NDArray[np.int64]:
    return load_photographs(options.data_folder, parts, limit=QUICK_IMAGES if options.quick else None).labels


def _logits(options: BenchOptions, name: str, parts: tuple[str, ...], *, viewed: bool) -> Array:
    """Logits of a network for photographs, or for their ten views: [views, count, classes], one view without them."""
    weights = options.data_folder / "pretrained" / f"{name}_imagenet.safetensors"
    limit = QUICK_IMAGES if options.quick else None
    key = json.dumps([name, parts, viewed, limit, VIEWS, hashlib.sha256(weights.read_bytes()).hexdigest()])
    path = cache_folder() / "bench" / f"photographs-{hashlib.sha256(key.encode()).hexdigest()[:16]}.npy"
    if not path.exists():
        model = load_model(f"timm:tf_{name}", weights=weights, pixels=_PIXELS)
        photographs = load_photographs(options.data_folder, parts, limit=limit)
        shape = model.image_shape
        inputs = RawInputs(photographs.images, model.preprocessing.of_images(), shape)
        found = []
        with options.progress.task(f"answer with {name}", len(inputs)) as task:
            for batch in _batches(len(inputs)):
                found.append(_run(model, inputs.take(batch), viewed))
                task.advance(len(batch))
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part.npy")
        np.save(partial, np.concatenate(found, axis=1))
        partial.replace(path)
    return np.asarray(np.load(path))


def _batches(count: int) -> Iterator[npt.NDArray[np.int64]]:
    for at in range(0, count, _BATCH):
        yield np.arange(at, min(at + _BATCH, count))


def _run(model: LoadedModel, inputs: Array, viewed: bool) -> Array:
    model.module.eval()
    with torch.inference_mode():
        every = views(inputs) if viewed else [inputs]
        return np.stack([model.module(torch.from_numpy(one)).numpy() for one in every])
