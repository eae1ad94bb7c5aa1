"""The least latency within limits of memory and error, over positions and bits at once (Auto-Split Eq. 5). Pure.

Algorithm 1 fixes memory budgets before it knows latencies. Here partial choices are extended layer by layer: their
latency, weights, working set and error are known, what breaks a limit or cannot beat the best solution yet is dropped,
and every layer is tried as the last one on the device. While all partial choices are kept, the result is optimal;
beyond ``width`` of them only the best by several weightings go on, and the result is as good as the best one given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt

from benchmarks.auto_split.problem import SplitProblem, SplitSolution, evaluate, keeps_limits, server_alone
from device_sdk.policies.splitting.head_renditions import best_by_weightings

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

WIDTH = 4096  # partial choices per layer
_MOST_FREE_CROSSINGS = 3  # tensors whose bits on the way are chosen one by one; beyond, one width for all


@dataclass(frozen=True)
class LeastLatency:
    """``optimal``: no choice was left out, so nothing is faster within the limits."""

    solution: SplitSolution
    optimal: bool


@dataclass(frozen=True)
class _Labels:
    """Partial choices: bits of weights and of tensors, the network's input first, [labels, layers so far], and sums."""

    weight_bits: Ints
    tensor_bits: Ints
    ms: Floats
    weight_bytes: Ints
    working_bytes: Ints
    error: Floats

    def take(self, rows: npt.NDArray[np.int64] | npt.NDArray[np.bool_]) -> _Labels:
        return _Labels(
            self.weight_bits[rows],
            self.tensor_bits[rows],
            self.ms[rows],
            self.weight_bytes[rows],
            self.working_bytes[rows],
            self.error[rows],
        )

    @property
    def peak_bytes(self) -> Ints:
        return self.weight_bytes + self.working_bytes

    def __len__(self) -> int:
        return len(self.ms)


def least_latency(problem: SplitProblem, *, known: Iterable[SplitSolution] = (), width: int = WIDTH) -> LeastLatency:
    """The fastest solution; never slower than the server alone or any of ``known`` that keeps the limits."""
    best = min(
        (one for one in (server_alone(problem), *known) if keeps_limits(problem, one)),
        key=lambda solution: solution.latency_ms,
    )
    optimal = True
    labels = _start(problem)
    for index in range(1, problem.graph.count + 1):
        labels = _within(problem, _extended(problem, labels, index), best.latency_ms)
        if not len(labels):
            break
        found = _finished(problem, labels, index, best.latency_ms)
        if found is not None:
            best = found
            labels = _within(problem, labels, best.latency_ms)
        optimal &= len(labels) <= width and _crossings(problem, index) <= _MOST_FREE_CROSSINGS
        labels = _thinned(labels, width)
    return LeastLatency(best, optimal)


def _start(problem: SplitProblem) -> _Labels:
    nothing = np.zeros(1, dtype=np.int64)
    none = np.zeros((1, 0), dtype=np.int64)
    zero = np.zeros(1)
    return _Labels(none, nothing[:, None] + problem.graph.input_bits, zero, nothing, nothing, zero)


def _extended(problem: SplitProblem, labels: _Labels, index: int) -> _Labels:
    """Every label with every choice for layer ``index``."""
    graph, layer = problem.graph, problem.graph.layer(index)
    choices = list(product(problem.widths if layer.weights else (0,), problem.widths))
    rows = np.repeat(np.arange(len(labels)), len(choices))
    weight_bits, output_bits = (np.tile(np.array(column), len(labels)) for column in zip(*choices, strict=True))
    own = labels.take(rows)
    tensor_bits = np.column_stack([own.tensor_bits, output_bits])
    working = sum(packed_sizes(graph.values(tensor), tensor_bits[:, tensor]) for tensor in graph.live(index))
    errors = {width: problem.activation_error(index, width) for width in problem.widths}
    weight_errors = {width: problem.weight_error(index, width) if width else 0.0 for width in (0, *problem.widths)}
    input_bits = tensor_bits[:, list(layer.inputs)]
    return _Labels(
        np.column_stack([own.weight_bits, weight_bits]),
        tensor_bits,
        own.ms + problem.device.layer_ms(graph, index, weight_bits, input_bits, output_bits),
        own.weight_bytes + packed_sizes(layer.weights, weight_bits),
        np.maximum(own.working_bytes, working),
        own.error + np.tile([weight_errors[first] + errors[second] for first, second in choices], len(labels)),
    )


def packed_sizes(values: int, bits: Ints) -> Ints:
    """Bytes of ``values`` in each of ``bits``."""
    sizes: Ints = -(-values * bits // 8)
    return sizes


def _within(problem: SplitProblem, labels: _Labels, limit_ms: float) -> _Labels:
    """Labels that keep the limits and may still beat ``limit_ms``."""
    kept = (labels.peak_bytes <= problem.memory_bytes) & (labels.error <= problem.max_error) & (labels.ms < limit_ms)
    return labels.take(kept)


def _crossings(problem: SplitProblem, index: int) -> int:
    return len(problem.graph.crossing(index)) if index < problem.graph.count else 0


def _finished(problem: SplitProblem, labels: _Labels, index: int, limit_ms: float) -> SplitSolution | None:
    """The best way to end the device's part behind layer ``index``, if it is faster than ``limit_ms``."""
    graph, link = problem.graph, problem.link
    crossing = graph.crossing(index) if index < graph.count else ()
    values = sum(graph.values(tensor) for tensor in crossing)
    fixed_ms = problem.server_rest_ms[index] + values * (link.packing_ms_per_value + link.unpacking_ms_per_value)
    best: tuple[float, int, tuple[int, ...]] | None = None
    for widths in _sent_choices(problem, crossing):
        ms, error = labels.ms + fixed_ms, labels.error.copy()
        if crossing:
            size = np.full(len(labels), link.overhead_bytes)
            for tensor, width in zip(crossing, widths, strict=True):
                computed = labels.tensor_bits[:, tensor]
                sent = np.minimum(computed, width) if tensor else computed
                size = size + packed_sizes(graph.values(tensor), sent)
                error += _sent_errors(problem, tensor, computed, width)
            ms = ms + link.sent_ms(size)
        ms = np.where(error <= problem.max_error, ms, np.inf)
        row = int(np.argmin(ms))
        if ms[row] < limit_ms and (best is None or ms[row] < best[0]):
            best = (float(ms[row]), row, widths)
    if best is None:
        return None
    _, row, widths = best
    bits = labels.tensor_bits[row, 1:].tolist()
    solution = evaluate(problem, index, labels.weight_bits[row].tolist(), bits, widths)
    return solution if keeps_limits(problem, solution) and solution.latency_ms < limit_ms else None


def _sent_choices(problem: SplitProblem, crossing: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    if len(crossing) <= _MOST_FREE_CROSSINGS:
        yield from product(problem.sent_widths, repeat=len(crossing))
    else:
        yield from ((width,) * len(crossing) for width in problem.sent_widths)


def _sent_errors(problem: SplitProblem, tensor: int, computed: Ints, width: int) -> Floats:
    if tensor == 0:
        return np.zeros(len(computed))
    known = {bits: problem.sent_error(tensor, bits, width) for bits in problem.widths}
    return np.array([known[bits] for bits in computed.tolist()])


def _thinned(labels: _Labels, width: int) -> _Labels:
    """At most ``width`` labels."""
    if len(labels) <= width:
        return labels
    return labels.take(best_by_weightings(labels.ms, labels.error, labels.peak_bytes.astype(np.float64), width))
