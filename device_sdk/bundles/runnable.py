"""The part of a bundle that a runtime can run, and the golden outputs that prove it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.manifest import Manifest
from device_sdk.errors import RuntimeFailedError, UsageError
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.supernet.blocks import CutPoint, Golden, Rendition, TensorSpec

SAMPLES_PER_TENSOR = 32
_STREAMS_PER_CUT_POINT = 1024


def golden_inputs(cut_point: CutPoint, *, seed: int, batch: int) -> list[npt.NDArray[Any]]:
    """The golden inputs at a cut point: one array [batch, *shape] per tensor.

    Tensor n of cut point k uses the stream ``seed + 1024 k + n``; value = low + (high − low) · u in float32, rounded
    down for integer tensors.
    """
    return [
        _draw(spec, seed=seed + _STREAMS_PER_CUT_POINT * cut_point.index + number, batch=batch)
        for number, spec in enumerate(cut_point.tensors)
    ]


def _draw(spec: TensorSpec, *, seed: int, batch: int) -> npt.NDArray[Any]:
    unit = uniform_floats(seed, batch * spec.size).reshape(batch, *spec.shape)
    values = np.float32(spec.low) + (np.float32(spec.high) - np.float32(spec.low)) * unit
    if not spec.dtype.startswith("float"):
        values = np.floor(values)
    return np.ascontiguousarray(values.astype(spec.dtype))


def sample_outputs(outputs: Sequence[npt.NDArray[Any]]) -> tuple[tuple[float, ...], ...]:
    """Sampled elements of each flattened output, at ``sample_positions``."""
    return tuple(
        tuple(float(output.reshape(-1)[index]) for index in sample_positions(output.size)) for output in outputs
    )


def sample_positions(size: int) -> list[int]:
    """Indices of the sampled elements: all up to ``SAMPLES_PER_TENSOR``, else draws of SplitMix64(size).

    Evenly spaced indices would hit the same pixel of every channel where extents are powers of two.
    """
    if size <= SAMPLES_PER_TENSOR:
        return list(range(size))
    random = SplitMix64(size)
    return [random.below(size) for _ in range(SAMPLES_PER_TENSOR)]


def matches(golden: Golden, outputs: Sequence[npt.NDArray[Any]]) -> bool:
    """True if ``outputs`` reproduce the samples of ``golden`` within its tolerance."""
    if len(outputs) != len(golden.samples):
        return False
    for expected, output in zip(golden.samples, outputs, strict=True):
        if len(sample_positions(output.size)) != len(expected):
            return False
        actual = np.array([output.reshape(-1)[index] for index in sample_positions(output.size)], dtype=np.float64)
        if not np.all(np.abs(actual - np.array(expected)) <= golden.tolerance):
            return False
    return True


RenditionFilter = Callable[[Rendition], bool]


@dataclass(frozen=True)
class RunsOn:
    """Accepts renditions for this ``runtime`` and any of ``providers`` (None: all), except those in ``left_out``."""

    runtime: str
    providers: frozenset[str] | None = None
    left_out: frozenset[str] = frozenset()  # names of renditions

    def __call__(self, rendition: Rendition) -> bool:
        if rendition.runtime != self.runtime or rendition.name in self.left_out:
            return False
        return self.providers is None or not rendition.providers or not self.providers.isdisjoint(rendition.providers)


def runnable_part(manifest: Manifest, accepts: RenditionFilter) -> Manifest:
    """``manifest`` without the renditions that ``accepts`` refuses, and without blocks and exits left with none.

    Raises:
        RuntimeFailedError: an original block has no rendition left, so that the bundle cannot run.
    """
    blocks = []
    for block in manifest.blocks:
        kept = tuple(filter(accepts, block.renditions))
        if kept:
            blocks.append(msgspec.structs.replace(block, renditions=kept))
        elif block.is_original:
            names = ", ".join(f"{one.name} for {one.runtime}" for one in block.renditions)
            raise RuntimeFailedError(
                f"bundle {manifest.name} has nothing that runs here for block {block.id}: it has {names}",
                hint="open it with another runtime, or package the model with a rendition for this one",
            )
    exits = [msgspec.structs.replace(one, renditions=tuple(filter(accepts, one.renditions))) for one in manifest.exits]
    exits = [one for one in exits if one.renditions]
    # other input sizes need a path of original blocks that supports them
    originals = [block for block in blocks if block.is_original]
    resizable = all(any(one.any_size for one in block.renditions) for block in originals)
    sizes = manifest.input_sizes if resizable else ()
    return msgspec.structs.replace(manifest, blocks=tuple(blocks), exits=tuple(exits), input_sizes=sizes)


def part_with_exits(manifest: Manifest, exits: Collection[str]) -> Manifest:
    """``manifest`` with only these of its exits.

    Raises:
        UsageError: it has no such exit; names those that it has.
    """
    names = [one.id for one in manifest.exits]
    unknown = sorted(set(exits) - set(names))
    if unknown:
        raise UsageError(
            f"bundle {manifest.name} has no exit {unknown[0][:80]}", hint="its exits: " + (", ".join(names) or "none")
        )
    return msgspec.structs.replace(manifest, exits=tuple(one for one in manifest.exits if one.id in exits))
