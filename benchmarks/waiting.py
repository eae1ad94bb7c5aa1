"""Latency and processor time of a model that is called now and then, by how its threads wait for the next call."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import plain_bundle
from device_sdk.session.adaptive_model import AdaptiveModel

TARGETS = {"idle_core_share": Target(maximum=0.03)}
CALLS_PER_S = 15
ROUNDS, QUICK_ROUNDS = 3, 1
TIGHT_S, PACED_S = 2.0, 4.0
WARMUP = 20
BRIEF_US, LONG_US = 50, 100_000  # of spinning: between operators; until the next call


@dataclass(frozen=True)
class Waiting:
    """Medians over calls. ``core_share``: of one core, by all threads of the process while calls are paced."""

    tight_ms: float
    tight_processor_ms: float  # per call
    paced_ms: float
    core_share: float


_SETTINGS = {  # threads, and for how many microseconds they spin
    "one thread": (1, 0),
    "two, asleep": (2, 0),
    f"two, spinning {BRIEF_US} µs": (2, BRIEF_US),
    f"two, spinning {LONG_US // 1000} ms": (2, LONG_US),
}


def run(options: BenchOptions) -> BenchOutcome:
    """ResNet-56, one image at a time: as fast as it goes, then fifteen a second; the settings take turns.

    ``idle_core_share``: of a core, what two threads take at fifteen calls a second beyond what as many calls of one
    thread take in a tight loop. ``spinning_core_share``: the same where threads spin until the next call.
    ``brief_over_asleep``: latency in a tight loop.
    """
    folder = plain_bundle(options)
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    found: dict[str, list[Waiting]] = {name: [] for name in _SETTINGS}
    with options.progress.task("settings", rounds * len(_SETTINGS)) as task:
        for _ in range(rounds):
            for name, (threads, spin_us) in _SETTINGS.items():
                found[name].append(_measured(folder, options.work_folder / "state", threads, spin_us))
                task.advance()
    one, asleep, brief, spinning = found.values()
    inference = [CALLS_PER_S * single.tight_processor_ms / 1e3 for single in one]
    figures = {
        "idle_core_share": _median(two.core_share - own for two, own in zip(asleep, inference, strict=True)),
        "brief_core_share": _median(two.core_share - own for two, own in zip(brief, inference, strict=True)),
        "spinning_core_share": _median(two.core_share - own for two, own in zip(spinning, inference, strict=True)),
        "brief_over_asleep": _median(a.tight_ms / b.tight_ms for a, b in zip(brief, asleep, strict=True)),
    }
    table: list[dict[str, object]] = [
        {"what": name, "round": number, **vars(one)}
        for name, rows in found.items()
        for number, one in enumerate(rows, start=1)
    ]
    return BenchOutcome(figures, table, data="an image of noise, since nothing but time is measured")


def _measured(folder: Path, state: Path, threads: int, spin_us: int) -> Waiting:
    with AdaptiveModel.open(folder, trust=None, state_folder=state, threads=threads, spin_us=spin_us) as model:
        height, width = model.bundle.manifest.cut_points[0].tensors[0].shape[1:]
        image = np.random.default_rng(0).integers(0, 256, (height, width, 3), np.uint8)
        call = partial(model, image)
        for _ in range(WARMUP):
            call()
        tight_ms, processor_s, calls, _ = _calls(call, TIGHT_S, every_s=0.0)
        paced_ms, paced_processor_s, _, elapsed_s = _calls(call, PACED_S, every_s=1 / CALLS_PER_S)
    return Waiting(tight_ms, 1e3 * processor_s / calls, paced_ms, paced_processor_s / elapsed_s)


def _calls(call: Callable[[], object], duration_s: float, *, every_s: float) -> tuple[float, float, int, float]:
    """The median latency in ms, the processor's seconds, the number of calls, and the seconds that they took."""
    latencies_ms: list[float] = []
    processor, begun = time.process_time(), time.perf_counter()
    while time.perf_counter() - begun < duration_s:
        started = time.perf_counter()
        call()
        latencies_ms.append(1e3 * (time.perf_counter() - started))
        time.sleep(max(0.0, begun + len(latencies_ms) * every_s - time.perf_counter()))
    elapsed_s = time.perf_counter() - begun
    return statistics.median(latencies_ms), time.process_time() - processor, len(latencies_ms), elapsed_s


_median = statistics.median
