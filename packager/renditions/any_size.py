"""Determines which fragments run at every input size of the bundle, on the device's runtime against torch."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.errors import RuntimeFailedError
from device_sdk.fragments.composition import Stretch
from device_sdk.progress import Progress
from device_sdk.runtimes import Array, OnnxRuntime
from device_sdk.supernet.blocks import Golden, InputSize
from device_sdk.supernet.plan import size_text
from packager.errors import VerificationError
from packager.exporting.export import ExportedBlocks
from packager.exporting.verification import (
    ABSOLUTE_TOLERANCE,
    RELATIVE_TOLERANCE,
    SELF_TEST_BATCH,
    SELF_TEST_SEED,
    TorchReference,
)
from packager.renditions.calibration import relative_error
from packager.renditions.rendition_set import RenditionSet, part_stretch
from packager.supernet.input_sizes import UsableSize, free_axes_at

_LARGEST_ERROR = 0.25  # of a quantised or half-precision rendition, on golden inputs


def running_sizes(
    exported: ExportedBlocks, sizes: Sequence[UsableSize]
) -> tuple[tuple[UsableSize, ...], tuple[str, ...]]:
    """The ``sizes`` at which the exported original path answers as in torch, and notes on the others."""
    found, notes = [], []
    for size in sizes:
        try:
            AnySizeCheck(exported, [size]).described()
            found.append(size)
        except (VerificationError, RuntimeFailedError) as error:
            notes.append(f"no input of {size_text(size.size)}: {str(error).splitlines()[0][:120]}")
    return tuple(found), tuple(notes)


class AnySizeCheck:
    """Compares fragments with torch at all of ``sizes``."""

    def __init__(self, exported: ExportedBlocks, sizes: Sequence[UsableSize]) -> None:
        self._exported, self._sizes = exported, sizes
        self._own = exported.expansion.cut_points
        self._reference = TorchReference(exported.expansion)
        self._runtime = OnnxRuntime(threads=1, lean=True)
        self._free_axes = free_axes_at(self._own, sizes)

    def described(self) -> tuple[InputSize, ...]:
        """The sizes as stored in the manifest, after verifying the original path at each.

        Raises:
            VerificationError: the original path differs from torch.
        """
        path = [block.id for block in self._exported.expansion.originals]
        return tuple(size.described(self._golden(path, size)) for size in self._sizes)

    def checked(self, kind: RenditionSet, progress: Progress) -> RenditionSet:
        """``kind`` with ``any_size``: its parts that run at every size. Programs of other runtimes have one size."""
        if not self._sizes or kind.runtime != "onnxruntime" or kind.providers:
            return kind
        exact = not kind.errors
        with progress.task(f"{kind.name} at other sizes", len(kind.own)) as task:
            found = []
            for part in kind.own:
                if self._runs(part, self._stretch(kind, part), exact=exact):
                    found.append(part)
                task.advance()
        left_out = sorted(set(kind.own) - set(found))
        notes = (f"{kind.name} of {', '.join(left_out)} runs only at the model's own input size",) if left_out else ()
        return replace(kind, any_size=frozenset(found), notes=(*kind.notes, *notes))

    def _stretch(self, kind: RenditionSet, part: str) -> Stretch:
        shared = [kind.shared[name] for name in kind.needs.get(part, ())]
        own = part_stretch(self._exported, part)
        return replace(own, fragments=(*shared, kind.own[part]), free_axes=self._free_axes)

    def _runs(self, part: str, stretch: Stretch, *, exact: bool) -> bool:
        try:
            with contextlib.closing(self._runtime.load(stretch)) as loaded:
                for size in self._sizes:
                    inputs = self._inputs(part, size)
                    expected, actual = self._reference.answer([part], inputs), loaded.run(inputs)
                    if not _agree(expected, actual, exact=exact):
                        return False
        except (RuntimeError, RuntimeFailedError, ValueError):  # torch raises various errors on unsupported sizes
            return False
        return True

    def _inputs(self, part: str, size: UsableSize) -> list[Array]:
        cut = size.cut_points(self._own)[self._reference.starts[part]]
        return golden_inputs(cut, seed=SELF_TEST_SEED, batch=SELF_TEST_BATCH)

    def _golden(self, path: Sequence[str], size: UsableSize) -> Golden:
        inputs = self._inputs(path[0], size)
        stretch = replace(self._exported.stretch(path), free_axes=self._free_axes)
        with contextlib.closing(self._runtime.load(stretch)) as loaded:
            expected, actual = self._reference.answer(path, inputs), loaded.run(inputs)
        tolerance = RELATIVE_TOLERANCE * float(np.abs(expected[-1]).max()) + ABSOLUTE_TOLERANCE
        difference = float(np.abs(expected[-1] - actual[-1]).max())
        if not difference <= tolerance:
            raise VerificationError(f"the original path differs from torch by {difference:.2g} at input {size.size}")
        return Golden(samples=sample_outputs(expected), tolerance=float(f"{tolerance:.3g}"))


def _agree(expected: Sequence[Array], actual: Sequence[Array], *, exact: bool) -> bool:
    for reference, answer in zip(expected, actual, strict=True):
        if reference.shape != answer.shape:
            return False
        difference = float(np.abs(reference - answer).max())
        if exact and not difference <= RELATIVE_TOLERANCE * float(np.abs(reference).max()) + ABSOLUTE_TOLERANCE:
            return False
        if not exact and not relative_error(answer, reference) <= _LARGEST_ERROR:
            return False
    return True
