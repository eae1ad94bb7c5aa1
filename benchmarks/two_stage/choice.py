"""Chooses the best subnet of a two-stage model whose backbone is fast enough, on training images."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.runner.run import BenchOptions
from benchmarks.two_stage.metrics import BATCH, Run
from benchmarks.two_stage.models import PREPROCESSING
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.preprocessing import prepare
from device_sdk.data.targets import TargetDataset
from device_sdk.execution.workspace import Workspace
from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.profiling.profile import profile
from device_sdk.profiling.timing import measure_interleaved
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import LoadedStretch
from device_sdk.search.nearby import Neighbourhood, nearby_init, nearby_mutate
from device_sdk.supernet.cost import Budget
from device_sdk.supernet.plan import Subnet

_SEARCHED, _QUICK_SEARCHED = 96, 8  # training images
_DRAWN, _CHILDREN, _GENERATIONS, _PARENTS = 48, 12, 6, 6
_QUICK_DRAWN = 3
_WINDOW_RATIO = 0.05  # subnets lie this close to the middle of a window that ends at the budget
_CONFIRMED = 8  # at once
_ROUNDS, _QUICK_ROUNDS = 60, 5

Judge = Callable[[Run, np.ndarray, np.ndarray], float]


class Chooser:
    """Looks for the subnet that answers most like the full model on images of ``training``, near a budget for its
    backbone. ``judge`` scores the choice.
    """

    def __init__(self, folder: Path, training: TargetDataset, judge: Judge, options: BenchOptions) -> None:
        self._bundle = Bundle.open(folder)
        self._training, self._judge, self._options = training, judge, options
        self._runtime = OnnxRuntime(threads=1)
        self._costs = profile(Workspace(self._bundle, self._runtime), progress=options.progress).cost_model()
        self.looked_at = 0

    @property
    def original(self) -> Subnet:
        """The full model."""
        return self._bundle.supernet.original

    def best(self, ratio: float) -> tuple[Subnet, float]:
        """The best subnet, and its backbone's share of the whole one's latency: at most ``ratio``, measured in turns.

        Subnets just below the budget, then changes of the best of them that stay there (AdaptiveNet §5.1).
        """
        ranked = self._ranked(self._high_ms(ratio / self._measured_over_predicted(ratio)))
        for first in range(0, len(ranked), _CONFIRMED):
            group = ranked[first : first + _CONFIRMED]
            for subnet, measured in zip(group, self._measured_ratios(group), strict=True):
                if measured <= EQUAL_LATENCY * ratio:
                    return subnet, measured
        raise RuntimeError(f"no subnet's backbone was measured at {ratio} of the latency")

    def score(self, subnet: Subnet, data: TargetDataset) -> float:
        """Score of ``subnet`` on ``data``, in percent."""
        with self._loaded(subnet) as run:
            return self._judge(run, _prepared(data.images), data.labels)

    def block_counts(self) -> dict[str, int]:
        """Number of blocks of each kind."""
        kinds = [block.kind for block in self._bundle.supernet.blocks]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def _measured_over_predicted(self, ratio: float) -> float:
        """Median of measured over predicted latency of backbones predicted at about ``ratio`` of the whole one's."""
        subnets, _ = self._near(self._high_ms(ratio), count=_CONFIRMED, random=SplitMix64(0))
        pairs = zip(subnets, self._measured_ratios(subnets), strict=True)
        whole_ms = self._backbone_ms(self.original)
        return median(measured * whole_ms / self._backbone_ms(subnet) for subnet, measured in pairs)

    def _backbone_ms(self, subnet: Subnet) -> float:
        """Predicted latency of ``subnet`` without its head's."""
        return self._costs.latency_ms(subnet) - self._costs.edge_latency_ms(subnet.edges[-1])

    def _high_ms(self, ratio: float) -> float:
        """Latency of the whole model if its backbone took ``ratio`` of its time."""
        head_ms = self._costs.edge_latency_ms(self.original.edges[-1])
        return head_ms + ratio * self._backbone_ms(self.original)

    def _near(self, high_ms: float, *, count: int, random: SplitMix64) -> tuple[list[Subnet], Neighbourhood]:
        """Up to ``count`` subnets that should take ``high_ms`` or a little less, and where they come from."""
        budget = Budget(latency_ms=high_ms / (1 + _WINDOW_RATIO))
        return nearby_init(
            self._bundle.supernet, self._costs, budget, window_ratio=_WINDOW_RATIO, count=count, random=random
        )

    def _ranked(self, high_ms: float) -> list[Subnet]:
        """Evaluated subnets, predicted at ``high_ms`` or a little less; the most like the full model first."""
        quick, random = self._options.quick, SplitMix64(0)
        drawn, near = self._near(high_ms, count=_QUICK_DRAWN if quick else _DRAWN, random=random)
        generations = 0 if quick else _GENERATIONS
        inputs = self._searched_inputs()
        wanted = self._answers(self.original, inputs)
        distances: dict[Subnet, float] = {}
        with self._options.progress.task("look at subnets", 1 + generations) as task:
            found: Sequence[Subnet] = drawn
            for generation in range(1 + generations):
                if generation:
                    parents = _nearest_first(distances)[:_PARENTS]
                    children = [nearby_mutate(near, parents[k % len(parents)], random=random) for k in range(_CHILDREN)]
                    found = [child for child in children if child is not None]
                for subnet in found:
                    if subnet not in distances:
                        distances[subnet] = float(np.mean((self._answers(subnet, inputs) - wanted) ** 2))
                task.advance()
        self.looked_at = len(distances)
        return _nearest_first(distances)

    def _searched_inputs(self) -> np.ndarray:
        """Images spread over the training data."""
        count = min(_QUICK_SEARCHED if self._options.quick else _SEARCHED, len(self._training))
        return _prepared(self._training.images[np.linspace(0, len(self._training) - 1, count, dtype=np.int64)])

    def _answers(self, subnet: Subnet, inputs: np.ndarray) -> np.ndarray:
        with self._loaded(subnet) as run:
            return np.concatenate([run(inputs[first : first + BATCH]) for first in range(0, len(inputs), BATCH)])

    @contextmanager
    def _loaded(self, subnet: Subnet) -> Iterator[Run]:
        """The whole subnet, to be run."""
        session = self._runtime.load(self._bundle.stretch(subnet.edges))
        try:
            yield lambda batch: session.run([batch])[-1]
        finally:
            session.close()

    def _measured_ratios(self, subnets: Sequence[Subnet]) -> list[float]:
        """Latencies of the backbones, deployed without their head, over the whole one's."""
        sessions: list[LoadedStretch] = [
            self._runtime.load(self._bundle.stretch(one.edges[:-1])) for one in (self.original, *subnets)
        ]
        sample = np.zeros((1, *self._bundle.supernet.cut_points[0].tensors[0].shape), dtype=np.float32)
        calls = {str(number): partial(session.run, [sample]) for number, session in enumerate(sessions)}
        try:
            found = measure_interleaved(calls, rounds=_QUICK_ROUNDS if self._options.quick else _ROUNDS, warmup=3)
        finally:
            for session in sessions:
                session.close()
        return [found[str(number + 1)].median_ms / found["0"].median_ms for number in range(len(subnets))]


def _nearest_first(distances: dict[Subnet, float]) -> list[Subnet]:
    return sorted(distances, key=lambda subnet: (distances[subnet], str(subnet)))


def _prepared(images: np.ndarray) -> np.ndarray:
    height, width = images.shape[1:3]
    return prepare(images, PREPROCESSING, input_shape=(3, height, width))
