"""Golden vectors: seeded inputs, sampled outputs, and the check that a bundle computes here what it must.

Inputs are never stored: they are drawn by SplitMix64 between the bounds that each tensor of a cut point states, the
same bits in Python and Kotlin (docs/bundle_format.md). Outputs are stored as samples with a tolerance.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import SelfTestError
from device_sdk.execution.loaded_segments import load_part
from device_sdk.progress import Progress, SilentProgress
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.runtimes.port import Array, Runtime
from device_sdk.supernet.blocks import CutPoint, Golden, TensorSpec
from device_sdk.supernet.plan import Edge, ExitChoice, size_text

SAMPLES_PER_TENSOR = 32
_STREAMS_PER_CUT_POINT = 1024


def golden_inputs(cut_point: CutPoint, *, seed: int, batch: int) -> list[Array]:
    """The golden inputs at a cut point: one array [batch, *shape] per tensor.

    Tensor n of cut point k uses the stream ``seed + 1024 k + n``; value = low + (high − low) · u in float32, rounded
    down for integer tensors.
    """
    return [
        _draw(spec, seed=seed + _STREAMS_PER_CUT_POINT * cut_point.index + number, batch=batch)
        for number, spec in enumerate(cut_point.tensors)
    ]


def _draw(spec: TensorSpec, *, seed: int, batch: int) -> Array:
    unit = uniform_floats(seed, batch * spec.size).reshape(batch, *spec.shape)
    values = np.float32(spec.low) + (np.float32(spec.high) - np.float32(spec.low)) * unit
    if not spec.dtype.startswith("float"):
        values = np.floor(values)
    return np.ascontiguousarray(values.astype(spec.dtype))


def sample_outputs(outputs: Sequence[npt.NDArray[np.generic]]) -> tuple[tuple[float, ...], ...]:
    """Some elements of each output, flattened; which ones depends on its size alone (``sample_positions``)."""
    return tuple(
        tuple(float(output.reshape(-1)[index]) for index in sample_positions(output.size)) for output in outputs
    )


def sample_positions(size: int) -> list[int]:
    """Which of ``size`` elements are looked at: all up to ``SAMPLES_PER_TENSOR``, else draws of SplitMix64(size).

    Drawn, since evenly spaced ones fall on the same pixel of every channel where extents are powers of two.
    """
    if size <= SAMPLES_PER_TENSOR:
        return list(range(size))
    random = SplitMix64(size)
    return [random.below(size) for _ in range(SAMPLES_PER_TENSOR)]


def matches(golden: Golden, outputs: Sequence[Array]) -> bool:
    """Whether ``outputs`` reproduce the samples of ``golden`` within its tolerance."""
    if len(outputs) != len(golden.samples):
        return False
    for expected, output in zip(golden.samples, outputs, strict=True):
        if len(sample_positions(output.size)) != len(expected):
            return False
        actual = np.array([output.reshape(-1)[index] for index in sample_positions(output.size)], dtype=np.float64)
        if not np.all(np.abs(actual - np.array(expected)) <= golden.tolerance):
            return False
    return True


def run_self_test(
    bundle: Bundle, runtime: Runtime, *, memory_cap_bytes: int | None = None, progress: Progress | None = None
) -> None:
    """Run every block and every exit alone, and the original path whole at each input size, on the golden inputs.

    Under a memory cap one sample at a time, and the path in pages if it takes more.

    Raises:
        SelfTestError: a rendition does not reproduce its golden outputs here.
        BlobError, CompositionError, RuntimeFailedError: it does not even load.
        BudgetError: the memory cap is too small for a block or exit; says the least that works.
    """
    supernet, cut_points = bundle.supernet, bundle.supernet.cut_points
    exits = [
        (exit_, rendition, ExitChoice(exit_.id, threshold=1.0, rendition=rendition.name))
        for exit_ in supernet.exits
        for rendition in exit_.renditions
    ]
    check = _Check(bundle, runtime, memory_cap_bytes)
    edges = [edge for edge in supernet.edges if not edge.input_size]
    total = len(edges) + len(exits) + len(supernet.sizes)
    with (progress or SilentProgress()).task("self-test", total) as task:
        for edge in edges:
            start = cut_points[supernet.block(edge.block).start]
            check(f"block {edge}", (edge,), None, start, supernet.rendition(edge).golden)
            task.advance()
        for exit_, rendition, choice in exits:
            check(f"exit {exit_.id}", (), choice, cut_points[exit_.position], rendition.golden)
            task.advance()
        original = supernet.original.edges
        check("the original path", original, None, cut_points[0], bundle.manifest.self_test.original)
        task.advance()
        for size in supernet.input_sizes:
            path = supernet.any_size_original.at(size.size).edges
            name = f"the original path at {size_text(size.size)}"
            check(name, path, None, supernet.cut_points_at(size.size)[0], size.golden)
            task.advance()


class _Check:
    def __init__(self, bundle: Bundle, runtime: Runtime, memory_cap_bytes: int | None) -> None:
        self._bundle, self._runtime, self._cap_bytes = bundle, runtime, memory_cap_bytes
        self._seed, self._batch = bundle.manifest.self_test.seed, bundle.manifest.self_test.batch

    def __call__(
        self, what: str, edges: Sequence[Edge], exit_: ExitChoice | None, start: CutPoint, golden: Golden
    ) -> None:
        inputs = golden_inputs(start, seed=self._seed, batch=self._batch)
        step = self._batch if self._cap_bytes is None else 1
        loaded = load_part(self._bundle, self._runtime, edges, exit_, memory_cap_bytes=self._cap_bytes)
        try:
            runs = [loaded.run([one[at : at + step] for one in inputs]) for at in range(0, self._batch, step)]
            outputs = [np.concatenate(one) for one in zip(*runs, strict=True)]
        finally:
            loaded.close()
        if matches(golden, outputs):
            return
        raise SelfTestError(
            f"{what} does not reproduce its golden outputs with {self._runtime.identity}",
            hint="the bundle or this machine's runtime is broken; do not use the bundle here",
        )
