"""Adaptations with the homes free and with fixed numbers of threads, and their latencies in turns."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from benchmarks.support.burner import one_core_burning
from benchmarks.sure.networks import Samples
from device_sdk.errors import InfeasibleBudgetError
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.profiling.timing import Latency, measure_interleaved
from device_sdk.runtimes.processor_homes import processor_homes
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.home import Home
from device_sdk.supernet.plan import Plan, Subnet
from pathweave import AdaptiveModel

CONDITIONS: Mapping[str, Callable[[], contextlib.AbstractContextManager[object]]] = {
    "idle": contextlib.nullcontext,
    "busy": one_core_burning,
}
_ROUNDS, _WARMUP = 160, 5
_PAUSE_S = 0.02  # before each call, as adaptation measures where no pace is known


@dataclass(frozen=True)
class Choice:
    """Models that adapted to one budget in one condition, with what each chose, None where nothing keeps it.

    ``free``: its edges name their homes; ``fixed``: by number of threads.
    """

    budget_ms: float
    free: Subnet
    fixed: Mapping[int, Subnet | None]


class Models:
    """One model whose homes are free, and two for each fixed number of threads: for its own choice and for the free's.

    They are open at once, so that their calls take turns.
    """

    def __init__(self, folder: Path, state: Path, threads: Sequence[int], stack: contextlib.ExitStack) -> None:
        def opened(name: str, **settings: Any) -> AdaptiveModel:
            return stack.enter_context(AdaptiveModel.open(folder, state_folder=state / name, **settings))

        self.free = opened("free", homes=[str(one) for one in processor_homes()])
        self.fixed = {count: opened(f"{count}", threads=count) for count in threads}
        self.same = {count: opened(f"{count}-same", threads=count) for count in threads}

    def profile(self) -> None:
        """Measure each of them that adapts, in the condition of the moment."""
        for model in (self.free, *self.fixed.values()):
            model.profile()

    def adapt(self, ratio: float, private: Samples, time_limit_s: float) -> Choice | None:
        """Adapt all alike to ``ratio`` of the free model's full latency; None if the free one refuses."""
        settings = AdaptationSettings(seed=0, time_limit_s=time_limit_s, use_prior=False)
        images, labels = private.images, private.labels
        try:
            found = self.free.adapt(images, Goal(latency_ratio=ratio), labels=labels, settings=settings)
        except InfeasibleBudgetError:
            return None
        budget_ms = found.goal.latency_ms
        assert budget_ms is not None
        fixed: dict[int, Subnet | None] = {}
        for count, model in self.fixed.items():
            fixed[count] = None
            with contextlib.suppress(InfeasibleBudgetError):
                goal = Goal(latency_ms=budget_ms)
                fixed[count] = model.adapt(images, goal, labels=labels, settings=settings).subnet
        return Choice(budget_ms, found.subnet, fixed)

    def in_turns(self, choice: Choice, image: npt.NDArray[np.uint8]) -> dict[str, Latency]:
        """Latencies of ``free``, of its subnet at each number of threads (``same N``) and of ``fixed N``, on one image.

        Ratios are those to ``free``; all calls count with the time that they waited for a core, which a user waits too.
        """
        tensor = self.free.prepare(image)
        calls = {"free": self.free}
        for count, model in self.same.items():
            model.use(Plan(without_homes(choice.free)))
            calls[f"same {count}"] = model
        calls |= {f"fixed {count}": model for count, model in self.fixed.items() if choice.fixed[count] is not None}
        return measure_interleaved(
            {name: partial(model.infer, tensor) for name, model in calls.items()},
            rounds=_ROUNDS,
            warmup=_WARMUP,
            reference="free",
            pause_s=_PAUSE_S,
            interruptions=lambda: 0,
            waited_ns=lambda: 0,
        )


def without_homes(subnet: Subnet) -> Subnet:
    """The same edges at the first home that a model was opened with."""
    return Subnet(tuple(msgspec.structs.replace(edge, home="") for edge in subnet.edges))


def threads_of(subnet: Subnet) -> int | None:
    """The number of threads of all its blocks; None where they differ, or are pinned to a cluster."""
    homes = {Home.parse(edge.home) if edge.home else Home() for edge in subnet.edges}
    one = homes.pop() if len(homes) == 1 else None
    return None if one is None or one.cluster else one.threads


@contextlib.contextmanager
def opened(folder: Path, state: Path, threads: Sequence[int]) -> Iterator[Models]:
    """The models, until the context is left."""
    with contextlib.ExitStack() as stack:
        yield Models(folder, state, threads, stack)
