"""Verification before signing: all exported parts and sampled subnets run on the device's runtime, against torch."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from device_sdk.bundles.runnable import golden_inputs, sample_outputs
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import Array, LoadedStretch, OnnxRuntime
from device_sdk.supernet.blocks import Golden
from device_sdk.supernet.paths import sample_uniformly
from packager.errors import VerificationError
from packager.exporting.export import ExportedBlocks
from packager.supernet.expansion import Expansion
from packager.tracing.traced_model import Feature, tensors_of

SELF_TEST_SEED = 20231002
SELF_TEST_BATCH = 2
BATCHES = (1, 3)
SUBNETS = 10
RELATIVE_TOLERANCE = 1e-3  # of the largest magnitude in the output
ABSOLUTE_TOLERANCE = 1e-5
ROUNDING_RATIO = 4.0  # allowed rounding error of a runtime, relative to torch's own
ROUNDING_SAMPLES = 8  # for estimating torch's rounding error
MOST_ROUNDING = 0.05  # of the largest magnitude; a model with larger rounding errors fails verification


class TorchReference:
    """Reference answers of the torch modules of blocks and exits, called parts here, to golden inputs."""

    def __init__(self, expansion: Expansion) -> None:
        self._cut_points = expansion.cut_points
        self._taps = expansion.traced.taps
        self._blocks = {block.id: block for block in expansion.blocks}
        self.modules: dict[str, nn.Module] = {block.id: block.module for block in expansion.blocks}
        self.modules |= {exit_.id: exit_.module for exit_ in expansion.exits}
        self.starts = {block.id: block.start for block in expansion.blocks}
        self.starts |= {exit_.id: exit_.position for exit_ in expansion.exits}

    def answer(self, parts: Sequence[str], inputs: Sequence[Array], *, exact: bool = False) -> list[Array]:
        """Run ``parts`` in sequence on the tensors ``inputs`` [batch, *shape] at their start.

        Returns an exit's answer, or the tensors at the last cut point. ``exact``: in double precision.
        """
        if exact:
            inputs = [tensor.astype(np.float64) if tensor.dtype == np.float32 else tensor for tensor in inputs]
        position = self.starts[parts[0]]
        features = self._features(position, inputs)
        with torch.no_grad():
            for part in parts:
                module = self.modules[part].eval()
                module = copy.deepcopy(module).double() if exact else module
                if part not in self._blocks:
                    return [module(*tensors_of([features[position]])).numpy()]
                block = replace(self._blocks[part], module=module)
                position = block.end
                features[position] = block.run(features)
        taps = self._taps if position < len(self._cut_points) - 1 else ()
        found = tensors_of([features[position], *(features[tap] for tap in taps if tap < position)])
        return [tensor.numpy() for tensor in found]

    def _features(self, position: int, inputs: Sequence[Array]) -> dict[int, Feature]:
        """The live tensors ``inputs`` at cut point ``position``, by the cut point that they belong to."""
        tensors = list(map(torch.from_numpy, inputs))
        taps = [tap for tap in self._taps if tap < position]
        own, tapped = tensors[: len(tensors) - len(taps)], tensors[len(tensors) - len(taps) :]
        features: dict[int, Feature] = dict(zip(taps, tapped, strict=True))
        features[position] = own[0] if len(own) == 1 else tuple(own)
        return features

    def compared(
        self, name: str, parts: Sequence[str], loaded: LoadedStretch
    ) -> Iterator[tuple[list[Array], list[Array]]]:
        """Answers of torch and of ``loaded`` at several batch sizes, that of the self-test last.

        Raises:
            VerificationError: the answers of ``name`` differ in shape.
        """
        for batch in (*BATCHES, SELF_TEST_BATCH):
            inputs = golden_inputs(self._cut_points[self.starts[parts[0]]], seed=SELF_TEST_SEED, batch=batch)
            expected, actual = self.answer(parts, inputs), loaded.run(inputs)
            shapes, expected_shapes = ([one.shape for one in found] for found in (actual, expected))
            if shapes != expected_shapes:
                raise VerificationError(f"{name} answers {_listed(shapes)}, torch {_listed(expected_shapes)}")
            yield expected, actual

    def golden(
        self, name: str, parts: Sequence[str], loaded: LoadedStretch, *, relative_tolerance: float = RELATIVE_TOLERANCE
    ) -> Golden:
        """The golden vector of ``loaded``, after comparing it with torch.

        ``relative_tolerance``: of the largest magnitude in an answer.

        Raises:
            VerificationError: the answers differ.
        """
        rounding = 0.0
        for expected, actual in self.compared(name, parts, loaded):
            largest = float(np.max([np.abs(tensor).max() for tensor in expected]))
            tolerance = max(relative_tolerance * largest + ABSOLUTE_TOLERANCE, min(rounding, MOST_ROUNDING * largest))
            difference = _difference(actual, expected)
            if not difference <= tolerance:
                rounding = rounding or self._rounding(parts)
                tolerance = max(tolerance, min(rounding, MOST_ROUNDING * largest))
            if not difference <= tolerance:
                raise VerificationError(
                    f"{name} differs from torch by {difference:.2g} at batch {len(actual[0])} "
                    f"(tolerance {tolerance:.2g})"
                )
        return Golden(samples=sample_outputs(expected), tolerance=float(f"{tolerance:.3g}"))

    def _rounding(self, parts: Sequence[str]) -> float:
        """Allowed rounding error of ``parts``, estimated from torch in single against double precision.

        A deep chain can amplify the rounding errors of its first layers a thousandfold. A different order of summation
        then changes the answer, without being less accurate than torch.
        """
        start = self._cut_points[self.starts[parts[0]]]
        inputs = golden_inputs(start, seed=SELF_TEST_SEED, batch=ROUNDING_SAMPLES)
        try:
            return ROUNDING_RATIO * _difference(self.answer(parts, inputs), self.answer(parts, inputs, exact=True))
        except RuntimeError:  # a model that hard-codes its precision
            return 0.0


def _difference(found: Sequence[Array], expected: Sequence[Array]) -> float:
    """The largest absolute difference over all tensors."""
    return float(np.max([np.abs(one - other).max() for one, other in zip(found, expected, strict=True)]))


def _listed(shapes: Sequence[tuple[int, ...]]) -> str:
    return " and ".join(map(str, shapes))


class Verifier:
    """Compares fragments with their torch modules."""

    def __init__(self, exported: ExportedBlocks, *, threads: int = 1) -> None:
        self._exported = exported
        self._expansion = exported.expansion
        self._reference = TorchReference(exported.expansion)
        self._runtime = OnnxRuntime(threads=threads, lean=True)

    def golden(self, block_ids: Sequence[str], exit_id: str | None = None) -> Golden:
        """The golden vector of consecutive blocks, or of an exit alone, after comparing it with torch.

        Raises:
            VerificationError: the answers differ at one of several batch sizes.
        """
        name = _name(block_ids) if exit_id is None else f"exit {exit_id}"
        with contextlib.closing(self._runtime.load(self._exported.stretch(block_ids, exit_id))) as loaded:
            return self._reference.golden(name, [*block_ids, *([exit_id] if exit_id else [])], loaded)

    def original_golden(self) -> Golden:
        """The same for the whole original path."""
        return self.golden([block.id for block in self._expansion.originals])

    def sampled_subnets(self, *, seed: int, checked: Callable[[], None] = lambda: None) -> None:
        """Check ``SUBNETS`` random subnets, duplicates only once (VerificationError).

        ``checked`` is called after each.
        """
        supernet = self._expansion.supernet()
        for subnet in dict.fromkeys(sample_uniformly(supernet, count=SUBNETS, random=SplitMix64(seed))):
            self.golden(subnet.block_ids)
            checked()

    def original_difference(self, samples: torch.Tensor, *, batch: int) -> float:
        """Largest absolute difference of the original path from the torch model on real ``samples``."""
        stretch = self._exported.stretch([block.id for block in self._expansion.originals])
        with contextlib.closing(self._runtime.load(stretch)) as loaded, torch.no_grad():
            return max(
                float(np.abs(loaded.run([some.numpy()])[0] - self._expansion.traced.whole(some).numpy()).max())
                for some in samples.split(batch)
            )


def _name(block_ids: Sequence[str]) -> str:
    return f"block {block_ids[0]}" if len(block_ids) == 1 else f"subnet {' '.join(block_ids)}"
