"""Elasticizes one model in a separate process: ``python -m benchmarks.generality.check NAME`` prints the results.

No training: tracing, expansion, batch-norm statistics of what was added, export, and the checks that any subnet has to
pass.
"""

from __future__ import annotations

import copy
import json
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import nn

from benchmarks.generality.models import MODELS
from device_sdk.machine import peak_resident_bytes, usable_cores
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import Array, LoadedStretch
from device_sdk.supernet.paths import sample_uniformly, subnet_count
from device_sdk.supernet.plan import Subnet
from packager.exporting.export import ExportedBlocks, export_blocks
from packager.exporting.verification import ROUNDING_RATIO
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace
from packager.training.keeping import recalibrate

BATCHES = (1, 3)  # and all inputs
EXAMPLES = 4
SUBNETS = 10
TOLERANCE = 1e-4  # of the largest logit
MAX_SPAN = 3
KEPT_BYTES = 600_000_000  # of the fragments of blocks whose sessions stay


def check(name: str) -> dict[str, object]:
    """``check_model`` of one of the models by its name."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    return check_model(name, model, inputs)


def check_model(name: str, model: nn.Module, inputs: torch.Tensor) -> dict[str, object]:
    """Cut points, blocks, subnets, the largest error of the original path, and of subnets alone against composed.

    ``inputs``: [count, *input]; the model answers [batch, classes, …].
    """
    started = time.monotonic()
    example = inputs[:EXAMPLES]
    expansion = expand(trace(model, example), max_span=MAX_SPAN)
    supernet = expansion.supernet()
    subnets = list(dict.fromkeys(sample_uniformly(supernet, count=4 * SUBNETS, random=SplitMix64(0))))[:SUBNETS]
    recalibrate(expansion, ((subnet, example) for subnet in subnets))
    exported = export_blocks(expansion)
    exported_s = time.monotonic() - started
    runtime = OnnxRuntime(threads=usable_cores(), lean=True)  # arenas of many sessions are large at batch 64
    original = runtime.load(exported.stretch(supernet.original.block_ids))
    with torch.no_grad():
        expected = model(example).numpy()
    original_error = _error(original.run([example.numpy()])[-1], expected)
    original.close()
    tolerance = max(TOLERANCE, ROUNDING_RATIO * _rounding(model, example, expected))
    subnet_error = _compare(runtime, exported, subnets, inputs.numpy())
    return {
        "model": name,
        "input": list(example.shape[1:]),
        "cut_points": len(supernet.cut_points),
        "several_tensors": sum(len(cut.tensors) > 1 for cut in supernet.cut_points),
        "blocks": len(supernet.blocks),
        "added_blocks": len(expansion.added),
        "subnets": str(subnet_count(supernet)),
        "subnets_run": len(subnets),
        "original_error": original_error,
        "subnet_error": subnet_error,
        "tolerance": tolerance,
        "passed": original_error <= tolerance and subnet_error <= tolerance,
        "notes": list(expansion.notes)[:2],
        "fragments_mb": round(sum(map(len, (*exported.own.values(), *exported.shared.values()))) / 1e6, 1),
        "export_seconds": round(exported_s, 1),
        "seconds": round(time.monotonic() - started, 1),
        "minutes": round((time.monotonic() - started) / 60, 2),
        "peak_gb": round((peak_resident_bytes() or 0) / 1e9, 2),
    }


def _rounding(model: nn.Module, example: torch.Tensor, expected: Array) -> float:
    """Error of torch's single-precision logits against double precision: a deep chain can amplify rounding."""
    inputs = example.double() if example.is_floating_point() else example
    try:
        with torch.no_grad():
            return _error(expected, copy.deepcopy(model).double()(inputs).numpy())
    except RuntimeError:  # of a model that names its own precision
        return 0.0


def _compare(runtime: OnnxRuntime, exported: ExportedBlocks, subnets: Sequence[Subnet], inputs: Array) -> float:
    """Run subnets composed and block by block at all batch sizes; the largest relative difference between the two."""
    blocks = _Blocks(runtime, exported)
    batches = {batch: [inputs[:batch]] for batch in (*BATCHES, len(inputs))}
    worst = 0.0
    for subnet in subnets:
        composed = runtime.load(exported.stretch(subnet.block_ids))
        found = {batch: composed.run(tensors)[-1] for batch, tensors in batches.items()}
        composed.close()
        alone = blocks.answers(subnet, batches)
        for batch, answer in found.items():
            if len(answer) != batch or answer.shape != alone[batch].shape:
                raise ValueError(f"{subnet} answers {answer.shape} at batch {batch}")
            worst = max(worst, _error(answer, alone[batch]))
    return worst


class _Blocks:
    """Blocks in separate sessions, kept up to ``KEPT_BYTES``; beyond that they are loaded per subnet."""

    def __init__(self, runtime: OnnxRuntime, exported: ExportedBlocks) -> None:
        self._runtime, self._exported = runtime, exported
        self._kept: dict[str, LoadedStretch] = {}
        self._left_bytes = KEPT_BYTES

    def answers(self, subnet: Subnet, inputs: Mapping[int, list[Array]]) -> dict[int, Array]:
        """The subnet's outputs for the inputs of each batch size, block by block."""
        features = dict(inputs)
        for block in subnet.block_ids:
            session = self._kept.get(block) or self._load(block)
            features = {batch: session.run(tensors) for batch, tensors in features.items()}
            if block not in self._kept:
                session.close()
        return {batch: tensors[-1] for batch, tensors in features.items()}

    def _load(self, block: str) -> LoadedStretch:
        stretch = self._exported.stretch([block])
        session = self._runtime.load(stretch)
        size_bytes = sum(len(fragment) for fragment in stretch.fragments)
        if size_bytes <= self._left_bytes:
            self._kept[block] = session
            self._left_bytes -= size_bytes
        return session


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest magnitude; infinite if a value is NaN or all are 0."""
    largest = np.abs(expected).max()
    if not (np.isfinite(found).all() and np.isfinite(expected).all() and largest > 0):
        return float("inf")
    return float(np.abs(found - expected).max() / largest)


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
