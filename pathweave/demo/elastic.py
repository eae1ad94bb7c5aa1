"""A part of the demo: deadlines that become shorter, and a memory limit that shrinks and grows again."""

from __future__ import annotations

import time
from dataclasses import dataclass

from device_sdk.data.datasets import load_dataset
from device_sdk.errors import InfeasibleDeadlineError
from device_sdk.execution.paging import least_memory_cap_bytes
from device_sdk.policies.exits.elastic_plan import least_plan_bytes, whole_plan_bytes
from device_sdk.policies.exits.placed_exits import timed_plan
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.plan import Plan
from pathweave.demo.devices import HELD_BACK, Delivery

SAMPLES, SAMPLES_IN_PAGES = 60, 20
MARGIN, MARGIN_MS = 1.2, 0.3  # beyond the time within which an exit is sure to have answered
MEMORY_SHARES = (1.0, 0.5, 0.0)  # between the largest block, in pages, and the whole plan


@dataclass(frozen=True)
class DeadlineRow:
    """``answered`` of the samples by ``deadline_ms``, ``right`` of those; ``longest_ms``: of these calls.

    ``sources``: how many answers came from where; refused ones are not among them.
    """

    deadline_ms: float
    answered: int
    right: int
    longest_ms: float
    sources: dict[str, int]


@dataclass(frozen=True)
class MemoryRow:
    """``answered`` samples under ``cap_mb`` megabytes, ``right`` of those, each in ``median_ms``."""

    cap_mb: float
    answered: int
    right: int
    median_ms: float
    sources: dict[str, int]


@dataclass(frozen=True)
class ElasticResult:
    """The same plan under four deadlines, on ``samples``, and under a limit of memory that shrinks and grows."""

    samples: int
    deadlines: tuple[DeadlineRow, ...]
    memory: tuple[MemoryRow, ...]


def answer_elastically(device: str, delivery: Delivery, progress: Progress) -> ElasticResult:
    """Have a device that has the bundle run the full model, and ask it again in less time and in less memory."""
    held_back = load_dataset(HELD_BACK)
    images, labels = held_back.images[:SAMPLES], held_back.labels[:SAMPLES]
    with delivery.open(device, progress) as model, progress.task("deadlines and memory", 2) as task:
        bundle = model.bundle
        plan = timed_plan(bundle.supernet, bundle.supernet.original)
        model.use(plan)
        for image in images:
            model(image, deadline_ms=1e3)  # so that more than a few runs are known
        deadlines = tuple(_by_deadline(model, images, labels, step) for step in (-1, -2, 0, None))
        task.advance()
        low, high = least_memory_cap_bytes(bundle, Plan(plan.subnet)), whole_plan_bytes(bundle, plan)
        caps = [round(low + share * (high - low)) for share in MEMORY_SHARES]
        shortened = (least_plan_bytes(bundle, plan) + low) // 2  # too little for the largest block
        few = images[:SAMPLES_IN_PAGES], labels[:SAMPLES_IN_PAGES]
        memory = tuple(_in_memory(model, *few, cap) for cap in (*caps, shortened, high))
        task.advance()
    return ElasticResult(len(images), deadlines, memory)


def _by_deadline(model: AdaptiveModel, images: Array, labels: Array, step: int | None) -> DeadlineRow:
    """Ask for all samples by the time at which this answer of the plan is sure; None: before the first can be."""
    times_ms = list(model.exits.answer_times_ms(images[:1]).values())
    deadline_ms = times_ms[0] / 4 if step is None else MARGIN * times_ms[step] + MARGIN_MS
    right, longest_ms = 0, 0.0
    sources: dict[str, int] = {}
    for image, label in zip(images, labels, strict=True):
        began = time.perf_counter()
        try:
            answer = model(image, deadline_ms=deadline_ms)
        except InfeasibleDeadlineError:
            continue
        longest_ms = max(longest_ms, (time.perf_counter() - began) * 1e3)
        right += int(answer.output.argmax() == label)
        sources[answer.source[0]] = sources.get(answer.source[0], 0) + 1
    return DeadlineRow(deadline_ms, sum(sources.values()), right, longest_ms, sources)


def _in_memory(model: AdaptiveModel, images: Array, labels: Array, cap_bytes: int) -> MemoryRow:
    model.memory_cap_bytes = cap_bytes
    right = 0
    times_ms = []
    sources: dict[str, int] = {}
    for image, label in zip(images, labels, strict=True):
        answer = model(image)
        times_ms.append(answer.latency_ms)
        right += int(answer.output.argmax() == label)
        sources[answer.source[0]] = sources.get(answer.source[0], 0) + 1
    return MemoryRow(cap_bytes / 1e6, len(times_ms), right, sorted(times_ms)[len(times_ms) // 2], sources)
