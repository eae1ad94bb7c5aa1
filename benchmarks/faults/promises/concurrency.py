"""S7, S8: plans that change under way, from many threads and for a long time."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from itertools import cycle
from pathlib import Path

import numpy as np

from benchmarks.faults.promise import Findings, Trial
from device_sdk.errors import ClosedError, InfeasibleBudgetError
from device_sdk.machine import resident_bytes
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Plan, Subnet

THREADS, SAMPLES = 16, 40
CAPS_MB: tuple[float | None, ...] = (None, 1.0)  # under the second one plans run in pages
THINK_S = 0.01  # between two calls of a thread: else it is the calls that keep changes waiting
CALL_S = 10.0  # no call takes longer, whatever happens besides
SWITCHES, EACH_S = 1800, 1.0  # of half an hour
GROWTH_BYTES, GROWTH_HANDLES, GROWTH_DISK_BYTES = 4_000_000, 4, 4096


def many_threads(trial: Trial, findings: Findings) -> None:
    """S7: sixteen threads infer while others adapt, switch and page, and in the end close; with and without a cap."""
    bundle = _one_size(trial)
    ends_s, rounds = trial.ends_s(), 0
    images = trial.random.integers(0, 256, (SAMPLES, 2, 2, 3), dtype=np.uint8)
    while rounds < len(CAPS_MB) or trial.clock() < ends_s:
        cap_mb = CAPS_MB[rounds % len(CAPS_MB)]
        rounds += 1
        seconds = min(trial.seconds / len(CAPS_MB), 10.0)
        model = AdaptiveModel.open(bundle, state_folder=trial.folder / f"state-{cap_mb}", memory_cap_mb=cap_mb)
        _Round(model, images, findings, cap_mb=cap_mb).run(seconds)


def _one_size(trial: Trial) -> Path:
    """The bundle without its further input sizes: for those, adapting needs images that can be resized."""
    bundle = trial.bundle.copy(trial.folder / "bundle")
    bundle.edit(lambda manifest: manifest.update(input_sizes=[]))
    return bundle.folder


class _Round:
    """One model until it is closed."""

    def __init__(self, model: AdaptiveModel, images: np.ndarray, findings: Findings, *, cap_mb: float | None) -> None:
        self._cap_mb = cap_mb
        self._changes = {"switched": 0, "adapted": 0, "warmed up": 0}
        self._model, self._images, self._findings = model, images, findings
        self._subnets = list(enumerate_subnets(model.bundle.supernet, limit=100))
        self._answers = {subnet: self._alone(subnet) for subnet in self._subnets}
        self._over = threading.Event()
        self._calls = [0] * THREADS

    def _alone(self, subnet: Subnet) -> np.ndarray:
        self._model.use(Plan(subnet))
        return self._model(self._images).output

    def run(self, seconds: float) -> None:
        """Until the model is closed in the middle of everything; then every call says that it is."""
        self._model.profile()  # while it is quiet; else adapting would take most of the time for this
        changes = (self._switch, self._adapt, self._warm_up)
        pool = ThreadPoolExecutor(THREADS + len(changes))
        done = [pool.submit(self._infer, number) for number in range(THREADS)]
        done += [pool.submit(change) for change in changes]
        time.sleep(seconds)
        self._model.close()
        self._over.set()
        _, hanging = wait(done, 3 * CALL_S)
        self._findings.case(not hanging, f"{len(hanging)} calls do not end after close", "hung")
        pool.shutdown(wait=False)
        for one in set(done) - hanging:
            one.result()
        self._findings.case(min(self._changes.values()) > 0, f"changes that never happened: {self._changes}")
        self._findings.note(f"cap {self._cap_mb} MB: {sum(self._calls)} calls, {dict(self._changes)}")
        self._findings.case(min(self._calls) > 0, f"a thread got no answer: {self._calls}", "hung")

    def _infer(self, number: int) -> None:
        random = np.random.default_rng(number)
        while True:
            chosen = random.integers(0, SAMPLES, random.integers(1, 5))
            began_s = time.monotonic()
            try:
                answer = self._model(self._images[chosen])
            except ClosedError:
                self._findings.case(True, "")
                return
            took_s = time.monotonic() - began_s
            time.sleep(THINK_S)
            self._calls[number] += 1
            wanted = self._answers[answer.plan.subnet][chosen]
            right = np.allclose(answer.output, wanted, atol=1e-4)
            self._findings.case(right, f"{answer.plan.subnet} answers {answer.output} instead of {wanted}", "torn")
            self._findings.case(took_s <= CALL_S, f"a call took {took_s:.1f} s", "hung")

    def _switch(self) -> None:
        self._until_closed("switched", lambda subnet: self._model.use(Plan(subnet)))

    def _adapt(self) -> None:
        labels = self._answers[self._model.bundle.supernet.original].argmax(axis=1)
        goals = cycle([Goal(latency_ms=5.0, memory_mb=100.0), Goal(memory_mb=0.9), Goal(latency_ms=0.02)])
        self._until_closed("adapted", lambda subnet: self._model.adapt(self._images, next(goals), labels=labels))

    def _warm_up(self) -> None:
        self._until_closed("warmed up", lambda subnet: self._model.warm_up())

    def _until_closed(self, name: str, change: Callable[[Subnet], object]) -> None:
        for subnet in cycle(self._subnets):
            try:
                change(subnet)
                self._changes[name] += 1
                time.sleep(THINK_S)
            except InfeasibleBudgetError:
                pass
            except ClosedError:
                return
            if self._over.is_set() and self._is_closed():
                return

    def _is_closed(self) -> bool:
        try:
            self._model(self._images[:1])
        except ClosedError:
            return True
        return self._findings.case(False, "a closed model answers")


def endless_switching(trial: Trial, findings: Findings) -> None:
    """S8: half an hour's switches, one a second, or as fast as the trial's share of time allows."""
    bundle, state = _one_size(trial), trial.folder / "state"
    image = trial.random.integers(0, 256, (1, 2, 2, 3), dtype=np.uint8)
    pause_s = min(EACH_S, trial.seconds / SWITCHES)
    ends_s, sizes, count = trial.ends_s(), [], 0
    with AdaptiveModel.open(bundle, state_folder=state, memory_cap_mb=None) as model:
        plans = _plans(model)
        for plan in plans:
            count += 1
            due_s = trial.clock() + pause_s
            model.use(plan)
            findings.case(model(image).plan == plan, "another plan answers than the one switched to", "torn")
            sizes.append(_size(state))
            time.sleep(max(0.0, due_s - trial.clock()))
            if trial.clock() > ends_s and count >= 100:
                break
    _judge_growth(sizes, findings)
    findings.note(f"{count} switches, one each {trial.seconds / count:.3f} s; in its long form one a second")


def _plans(model: AdaptiveModel) -> Iterator[Plan]:
    subnets: Sequence[Subnet] = list(enumerate_subnets(model.bundle.supernet, limit=100))
    return cycle([Plan(subnet) for subnet in subnets])


def _size(state: Path) -> tuple[int, int, int]:
    """Resident bytes, handles, and bytes of the state folder but for its log, which is rotated."""
    disk = sum(path.stat().st_size for path in state.rglob("*") if path.is_file() and "log" not in path.name)
    return resident_bytes() or 0, len(os.listdir("/proc/self/fd")), disk


def _judge_growth(sizes: list[tuple[int, int, int]], findings: Findings) -> None:
    """The middle of the last fifth against that of the second."""
    fifth = len(sizes) // 5
    before, after = (np.median(part, axis=0) for part in (sizes[fifth : 2 * fifth], sizes[-fifth:]))
    limits = (GROWTH_BYTES, GROWTH_HANDLES, GROWTH_DISK_BYTES)
    for what, old, new, limit in zip(("memory", "handles", "disk"), before, after, limits, strict=True):
        findings.case(new - old <= limit, f"{what} grew from {old:.0f} to {new:.0f}")
        findings.note(f"{what}: {old:.0f}, at the end {new:.0f}")
