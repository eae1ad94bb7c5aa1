"""``python -m benchmarks.real_size.adapt BUNDLE DATA RATIO``: seconds and memory of opening and adapting, alone."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from benchmarks.real_size.photographs import load_photographs
from benchmarks.support.judged import answered_rightly
from benchmarks.support.paired import bootstrap_points
from benchmarks.support.subnets import load_subnet
from device_sdk.machine import peak_resident_bytes
from device_sdk.policies.gathering import SEARCH_S, AdaptationSettings
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.goal import Goal
from pathweave import AdaptiveModel

_IMAGES, _QUICK_IMAGES = 300, 60
_LONGER = 10  # times the time of a search


def measure(folder: Path, data_folder: Path, ratio: float, *, quick: bool) -> dict[str, float]:
    """``adapt_seconds`` begins with an opened bundle and no profile, and ends with the new plan in use."""
    private = load_photographs(data_folder, ("search", "calibration"), limit=_QUICK_IMAGES if quick else _IMAGES)
    figures: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as state:
        for name in ("open_first_s", "open_again_s"):
            started = time.perf_counter()
            AdaptiveModel.open(folder, state_folder=state).close()
            figures[name] = time.perf_counter() - started
        with AdaptiveModel.open(folder, state_folder=state) as model:
            started = time.perf_counter()
            full_ms = model.profile().original_ms
            figures["profile_seconds"] = time.perf_counter() - started
            goal = Goal(latency_ms=ratio * full_ms)
            found = model.adapt(private.images, goal, labels=private.labels)
            figures["adapt_seconds"] = time.perf_counter() - started
            figures["adapt_peak_mb"] = (peak_resident_bytes() or 0) / 1e6
            longer = AdaptationSettings(time_limit_s=SEARCH_S * (1 if quick else _LONGER))
            best = model.adapt(private.images, goal, labels=private.labels, settings=longer)
        report = load_photographs(data_folder, ("report",), limit=_QUICK_IMAGES if quick else None)
        inputs = report.inputs(model.bundle.manifest.preprocessing.of_images())
        loaded = {one.subnet: load_subnet(model.bundle, OnnxRuntime(threads=1), one.subnet) for one in (found, best)}
        right = answered_rightly(loaded, inputs, report.labels)
        change = right[best.subnet].astype(np.float64) - right[found.subnet]
        figures["longer_search_gain_points"] = 100 * float(change.mean())
        _, figures["longer_search_gain_high_points"] = bootstrap_points(change)
    return figures


if __name__ == "__main__":
    arguments = [one for one in sys.argv[1:] if one != "--quick"]
    found_figures = measure(Path(arguments[0]), Path(arguments[1]), float(arguments[2]), quick="--quick" in sys.argv)
    print(json.dumps(found_figures))
