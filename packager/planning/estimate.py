"""Estimates the cost of packaging a traced and expanded model: seconds per step, memory (measured by running each part
once), size of the bundle.

Cost model: each step has a cost per block or exit, in seconds on a reference machine, and a cost per MAC. The speed of
this machine is measured with a Python loop and one forward pass. After each step, the measured time corrects the
estimates of the later ones.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from device_sdk.supernet.blocks import TensorSpec
from packager.assembly.validation import FIRST_SAMPLES
from packager.inputs.recipe import Recipe
from packager.renditions.calibration import LEAST_SAMPLES, sample_count
from packager.supernet.expansion import Expansion, TrainableBlock, TrainableExit

EXPORT, VERIFY, VALIDATE, WRITE, TRAIN = "export", "verify", "validate", "write", "train"
RECALIBRATE = "recalibrate"
SIZES = "other input sizes"
_LOOP = 200_000
_LOOP_REFERENCE_S = 0.0145  # the loop's time on the reference machine
_FIXED_S = {EXPORT: 3.0, "int8": 1.0, "htp": 2.0, "xnnpack": 3.0, WRITE: 0.3}
_PART_S = {
    EXPORT: 0.13,
    VERIFY: 0.06,
    "int8": 0.13,
    "fp16": 0.05,
    "xnnpack": 4.0,
    "htp": 0.5,
    SIZES: 0.06,
    VALIDATE: 0.02,
    WRITE: 0.005,
}
_EMULATED = 300  # time of an NPU's emulator on the samples of one part, relative to torch on one sample
_RUNTIME = 0.4  # time of ONNX Runtime relative to torch, with sessions that keep no memory between runs
_WANTED_SAMPLES, _WANTED_PAIRS, _RANGES = 1000, 250, 6  # of validation, approximately
_SIZES, _SIZE_RUNS, _SIZE_SAMPLES = 4, 4, 64  # tried; forward passes per part and size; samples of the original path
_RECALIBRATE_SHARE = 0.05  # maximum, of the budget
_BACKWARD = 3.0  # cost of a training step relative to a forward pass
_BYTES_OF_WEIGHT = {
    "fp32": 4,
    "int8": 1,
    "fp16": 2,
    "xnnpack": 4,
    "htp": 1,
    "w8": 1.0,
    "w6": 0.75,
    "w4": 0.5,
    "w2": 0.25,
}
_BYTES_OF_PART = 4000  # graph, golden vector, names
_LIBRARIES_BYTES = 250_000_000  # libraries loaded for export and quantisation
_TRAINED_WEIGHTS = 4  # weights, gradients, two moments
_LEAST_TRAINING_BATCH = 4
WORKING_BYTES = 256_000_000  # working set of a batch: larger batches are no faster on a CPU
LARGEST_BATCH = 64
_LIVE = 1.5  # memory of a runtime relative to an operator's tensors: other layouts, padding, prefetched outputs


@dataclass(frozen=True)
class Machine:
    """``mac_s``: seconds per MAC in a forward pass; ``pace``: Python's slowdown relative to the reference machine."""

    mac_s: float
    pace: float


@dataclass(frozen=True)
class Size:
    """The properties of a supernet that determine the cost of packaging it."""

    parts: int
    trained_parts: int
    macs: float  # of the original path
    all_macs: float
    weights: int  # of all parts
    original_weights: int
    cut_bytes: int  # of the features at all cut points
    most_cut_bytes: int
    path_written: int  # bytes that the original path writes for a sample
    trained_written: int
    footprint: Footprint

    @classmethod
    def of(cls, expansion: Expansion) -> Size:
        """Measured by running every part once."""
        measured = footprints(expansion)
        parts: list[TrainableBlock | TrainableExit] = [*expansion.blocks, *expansion.exits]
        return cls(
            parts=len(parts),
            trained_parts=len(expansion.trained) + len(expansion.exits),
            macs=sum(block.macs for block in expansion.originals),
            all_macs=sum(part.macs for part in parts),
            weights=sum(part.parameters for part in parts),
            original_weights=sum(block.parameters for block in expansion.originals),
            cut_bytes=sum(cut.nbytes for cut in expansion.cut_points),
            most_cut_bytes=max(cut.nbytes for cut in expansion.cut_points),
            path_written=sum(measured[block.id].written for block in expansion.originals),
            trained_written=sum(measured[block.id].written for block in expansion.trained),
            footprint=Footprint.largest(measured.values()),
        )


def measured_machine(expansion: Expansion, examples: torch.Tensor) -> Machine:
    """Time the original path on ``examples`` [batch, *input], and a Python loop."""
    macs = max(1, sum(block.macs for block in expansion.originals))
    with torch.no_grad():
        started = time.perf_counter()
        expansion.traced.features(examples)
        forward_s = time.perf_counter() - started
    return Machine(forward_s / len(examples) / macs, min(_loop_s() for _ in range(3)) / _LOOP_REFERENCE_S)


def _loop_s() -> float:
    started, found = time.perf_counter(), {}
    for number in range(_LOOP):
        found[number & 1023] = number
    return time.perf_counter() - started


@dataclass(frozen=True)
class Estimate:
    """The estimated cost of a run.

    ``seconds``: of each step, training included. ``least_seconds``, ``least_bytes``: of a run without training and with
    the minimum of calibration and validation. ``batch``: batch size outside of training.
    """

    seconds: Mapping[str, float]
    least_seconds: float
    least_validation_s: float
    peak_bytes: int
    least_bytes: int
    bundle_bytes: int
    batch: int
    training_batch: int
    calibration_samples: int
    recalibrate_batches: int

    @property
    def after_training(self) -> float:
        """Seconds of all steps but training."""
        return sum(seconds for step, seconds in self.seconds.items() if step != TRAIN)

    def described(self, spent: float) -> dict[str, object]:
        """The output of ``--dry-run --json``; ``spent``: seconds so far."""
        return {
            "minutes": round((spent + sum(self.seconds.values())) / 60, 2),
            "least_minutes": round(self.least_seconds / 60, 2),
            "seconds": {step: round(seconds, 1) for step, seconds in self.seconds.items()},
            "peak_gb": round(self.peak_bytes / 1e9, 2),
            "least_memory_gb": round(self.least_bytes / 1e9, 2),
            "bundle_mb": round(self.bundle_bytes / 1e6, 1),
            "training_batch": self.training_batch,
            "calibration_samples": self.calibration_samples,
        }


@dataclass(frozen=True)
class Estimator:
    """Estimates the cost of a run from its recipe, the sizes of model and data, and the machine."""

    recipe: Recipe
    size: Size
    machine: Machine
    training_samples: int
    validation_samples: int
    examples: int

    def estimate(self, *, memory_bytes: int, resident_bytes: int, spent: float) -> Estimate:
        """Estimate within ``memory_bytes``. ``resident_bytes``: current memory; ``spent``: seconds since the start."""
        batch = self._batch(memory_bytes - resident_bytes)
        training_batch = self._training_batch(memory_bytes - resident_bytes)
        samples = sample_count(self.size.most_cut_bytes, self.training_samples)
        of_original = min(_WANTED_SAMPLES, self.validation_samples)
        wanted_s = self._validation_s(FIRST_SAMPLES + _WANTED_PAIRS, of_original)
        seconds = self._seconds(training_batch, samples, wanted_s)
        least = self._seconds(training_batch, LEAST_SAMPLES, self._validation_s(FIRST_SAMPLES, FIRST_SAMPLES))
        if self.recipe.budget_minutes is not None:
            others = sum(seconds.values()) - seconds[TRAIN]
            seconds[TRAIN] = max(0.0, self.recipe.budget_minutes * 60 - spent - others)
        return Estimate(
            seconds=seconds,
            least_seconds=spent + sum(least.values()) - least[TRAIN] - least[RECALIBRATE],
            least_validation_s=least[VALIDATE],
            peak_bytes=resident_bytes + self._bytes(batch, training_batch, samples),
            least_bytes=resident_bytes
            + self._bytes(1, min(_LEAST_TRAINING_BATCH, self.recipe.largest_batch), LEAST_SAMPLES),
            bundle_bytes=self._bundle_bytes(),
            batch=batch,
            training_batch=training_batch,
            calibration_samples=samples,
            recalibrate_batches=self._recalibrate_batches(training_batch),
        )

    def corrected(self, step: str, *, expected: float, took: float) -> Estimator:
        """The estimator corrected by the measured time of a step."""
        if expected <= 0 or step not in _PART_S:
            return self
        return replace(self, machine=replace(self.machine, pace=self.machine.pace * took / expected))

    def _batch(self, room: int) -> int:
        return batch_within(self.size.footprint, room_bytes=max(1, min(WORKING_BYTES, room // 4)))

    def _training_batch(self, room: int) -> int:
        """The recipe's batch, or the largest that fits beside the weights, a multiple of 8 if above 8."""
        fitting = int((room - self._training_weights_bytes()) / max(1, self._training_sample_bytes()))
        if fitting >= self.recipe.largest_batch or not self._trains:
            return self.recipe.largest_batch
        return max(_LEAST_TRAINING_BATCH, fitting - fitting % 8 if fitting >= 8 else fitting)

    def _training_weights_bytes(self) -> int:
        return 4 * _TRAINED_WEIGHTS * self.size.weights * self._trains

    def _training_sample_bytes(self) -> int:
        written = self.size.path_written
        if self.recipe.distil_from == "teacher":
            written = max(written, self.size.trained_written)
        return (written + self.size.cut_bytes) * self._trains

    def _seconds(self, training_batch: int, samples: int, validation_s: float) -> dict[str, float]:
        """Seconds per step; ``samples``: of calibration."""
        size, machine, recipe = self.size, self.machine, self.recipe
        forward_s = machine.mac_s * size.macs
        trains = self._trains
        verified = 24 * size.all_macs + (2 * self.examples + 130) * size.macs + self.examples * size.all_macs
        found = {
            TRAIN: trains * (recipe.steps or 0) * training_batch * (1 + _BACKWARD) * forward_s,
            RECALIBRATE: trains * self._recalibrate_batches(training_batch) * training_batch * forward_s,
            EXPORT: self._overhead(EXPORT),
            VERIFY: self._overhead(VERIFY) + 0.5 * machine.mac_s * verified,
        }
        for kind in recipe.renditions:
            if kind == "int8":
                found[kind] = self._overhead(kind) + 2.5 * samples * machine.mac_s * (size.macs + size.all_macs)
            elif kind == "htp":
                emulated = _EMULATED * machine.mac_s * size.all_macs
                found[kind] = self._overhead(kind) + len(recipe.chips) * emulated
            elif kind in _PART_S:
                found[kind] = self._overhead(kind) + 12 * machine.mac_s * size.all_macs
        if recipe.input_sizes:
            runs = _SIZES * _SIZE_RUNS * len(recipe.renditions)
            compared = machine.mac_s * (runs * size.all_macs + (_SIZES // 2 + 1) * _SIZE_SAMPLES * size.macs)
            found[SIZES] = len(recipe.renditions) * self._overhead(SIZES) + compared
        return found | {VALIDATE: self._overhead(VALIDATE) + validation_s, WRITE: self._overhead(WRITE)}

    def _recalibrate_batches(self, training_batch: int) -> int:
        """The recipe's number, or as many as fit into a small share of the budget."""
        wanted = 30 if self.recipe.recalibrate_batches is None else self.recipe.recalibrate_batches
        if self.recipe.budget_minutes is None:
            return wanted
        room_s = _RECALIBRATE_SHARE * 60 * self.recipe.budget_minutes
        batch_s = training_batch * self.machine.mac_s * self.size.macs
        return min(wanted, max(1, int(room_s / max(batch_s, 1e-9))))

    @property
    def _trains(self) -> bool:
        return self.size.trained_parts > 0 and self.recipe.steps != 0

    def _overhead(self, step: str) -> float:
        return self.machine.pace * (_FIXED_S.get(step, 0.0) + _PART_S[step] * self.size.parts)

    def _validation_s(self, of_ranges: int, of_original: int) -> float:
        ranges = _RANGES if self.size.trained_parts else 0
        return _RUNTIME * self.machine.mac_s * self.size.macs * (of_ranges * (1 + 0.6 * ranges) + of_original)

    def _bytes(self, batch: int, training_batch: int, samples: int) -> int:
        """The peak memory of any step, in addition to current use."""
        size = self.size
        working = int(2.0 * size.footprint.widest * batch) + size.cut_bytes * batch
        fragments = 4 * size.weights
        steps = [
            self._training_weights_bytes() + training_batch * self._training_sample_bytes(),
            _LIBRARIES_BYTES + 4 * fragments,
            _LIBRARIES_BYTES + fragments + 8 * size.original_weights + working,
            _LIBRARIES_BYTES + 4 * fragments + working,  # the sessions of validation
        ]
        if set(self.recipe.renditions) - {"fp32"}:
            steps.append(_LIBRARIES_BYTES + 2 * fragments + 3 * samples * size.most_cut_bytes + 2 * working)
        return max(steps)

    def _bundle_bytes(self) -> int:
        kinds = self.recipe.renditions
        weights = round(self.size.weights * sum(_BYTES_OF_WEIGHT[kind] for kind in kinds))
        return weights + len(kinds) * self.size.parts * _BYTES_OF_PART


@dataclass(frozen=True)
class Footprint:
    """Bytes per sample. ``widest``: inputs and outputs of the largest operator; ``written``: all outputs."""

    widest: int
    written: int

    @classmethod
    def largest(cls, footprints: Iterable[Footprint]) -> Footprint:
        """The elementwise maximum."""
        found = list(footprints)
        return cls(max(footprint.widest for footprint in found), max(footprint.written for footprint in found))


def footprints(expansion: Expansion) -> dict[str, Footprint]:
    """The footprint of every block and exit, by its id."""
    cuts = expansion.traced.cuts
    found = {
        block.id: module_footprint(block.module, [spec for k in (*block.taps, block.start) for spec in cuts[k]])
        for block in expansion.blocks
    }
    return found | {exit_.id: module_footprint(exit_.module, cuts[exit_.position]) for exit_ in expansion.exits}


def module_footprint(module: nn.Module, read: Sequence[TensorSpec]) -> Footprint:
    """The footprint of ``module`` in evaluation mode, which takes the tensors ``read``."""
    inputs = [torch.zeros(1, *spec.shape, dtype=getattr(torch, spec.dtype)) for spec in read]
    weights = {tensor.data_ptr() for tensor in [*module.parameters(), *module.buffers()]}
    with torch.no_grad(), _Counting(weights) as counting:
        module.eval()(*inputs)
    given = sum(tensor.nbytes for tensor in inputs)
    return Footprint(max(counting.widest, given), counting.written)


def batch_within(footprint: Footprint, *, room_bytes: int = WORKING_BYTES, most: int = LARGEST_BATCH) -> int:
    """The largest batch within ``room_bytes``; at least 1."""
    return max(1, min(most, int(room_bytes / (_LIVE * max(footprint.widest, 1)))))


class _Counting(TorchDispatchMode):
    """Sums the bytes of the tensors that operators read and write, weights excluded."""

    def __init__(self, weights: set[int]) -> None:
        super().__init__()
        self._weights = weights
        self.widest = self.written = 0

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        answer = function(*args, **(kwargs or {}))
        read = {tensor.data_ptr(): tensor.nbytes for tensor in self._activations((args, kwargs or {}))}
        written = {tensor.data_ptr(): tensor.nbytes for tensor in self._activations(answer)}
        self.widest = max(self.widest, sum((read | written).values()))
        self.written += sum(size for pointer, size in written.items() if pointer not in read)
        return answer

    def _activations(self, values: Any) -> list[torch.Tensor]:
        found = [tensor for tensor in tree_leaves(values) if isinstance(tensor, torch.Tensor)]
        return [tensor for tensor in found if tensor.data_ptr() not in self._weights]
