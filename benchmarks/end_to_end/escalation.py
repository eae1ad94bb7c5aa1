"""Escalation of hard samples from a small network on the device to a large one at a real server, over HTTP."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from benchmarks.runner.run import BenchOptions, Target
from benchmarks.support.reference_bundles import Made, Part, answers, load_part
from device_sdk.data.datasets import ImageDataset
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import FALLBACK, SERVER
from device_sdk.supernet.goal import Goal
from pathweave.server_process import running_server

# ResNet-8 with ResNet-56 behind it by an entropy threshold, on the same images (percent)
EXPECTED = {10: 90.20, 20: 91.95, 30: 92.96}
WITHIN_POINTS = 0.5
ESCALATION_TARGETS = {
    f"escalate_{percent}": Target(minimum=expected - WITHIN_POINTS, maximum=expected + WITHIN_POINTS)
    for percent, expected in EXPECTED.items()
} | {"escalation_fallbacks": Target(maximum=0)}
TIMEOUT_S = 30.0
TIMED_SAMPLES = 100


def escalate(small: Made, large: Made, options: BenchOptions) -> Part:
    """Thresholds are set on test.zip#calibration for shares of 10, 20 and 30 %; accuracies are those on #report."""
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    fallbacks = 0
    state = options.work_folder / "escalation"
    with (
        running_server(large.folder, data=options.work_folder / "server") as server,
        AdaptiveModel.open(small.folder, state_folder=state) as model,
    ):
        calibration, report = (load_part(options, part, model) for part in ("calibration", "report"))
        name = f"{large.model.name}:images"
        model.remote.connect(RemoteModel(server=server, model=name, privacy="inputs", timeout_s=TIMEOUT_S))
        for percent in EXPECTED:
            goal = Goal(share_asked=percent / 100)
            found = model.adapt(calibration.images, goal, {"ask"}, calibration.labels)
            right, sources = _classify(model, report)
            fallbacks += sources[FALLBACK]
            figures[f"escalate_{percent}"] = right
            figures[f"escalate_{percent}_share"] = 100 * sources[SERVER] / len(report)
            threshold = found.plan.hard_threshold or 0.0
            rows.append({"what": f"escalate {percent} %", "threshold": threshold, "accuracy": right, **sources})
        rows.append({"what": "one escalated sample over HTTP", **_latencies(model, report)})
    figures["escalation_fallbacks"] = fallbacks
    return Part(figures, rows)


def _classify(model: AdaptiveModel, report: ImageDataset) -> tuple[float, Counter[str]]:
    sources: Counter[str] = Counter()
    right, at = 0, 0
    for answer in answers(model, report):
        count = len(answer.output)
        right += int((answer.output.argmax(axis=1) == report.labels[at : at + count]).sum())
        sources.update(answer.source)
        at += count
    return 100 * right / len(report), sources


def _latencies(model: AdaptiveModel, report: ImageDataset) -> dict[str, float]:
    """Latencies of single samples answered by the server and by the device, at the last threshold."""
    taken: dict[bool, list[float]] = {True: [], False: []}
    for image in report.images[:TIMED_SAMPLES]:
        started = time.perf_counter()
        answer = model(image)
        taken[answer.source[0] == SERVER].append((time.perf_counter() - started) * 1e3)
    return {
        "escalated_median_ms": float(np.median(taken[True])),
        "local_median_ms": float(np.median(taken[False])),
    }
