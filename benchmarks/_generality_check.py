"""One model, elasticized in a process of its own: ``python -m benchmarks._generality_check NAME`` prints what it found.

No training: tracing, expansion, export, and the checks that any subnet has to pass.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Mapping, Sequence

import numpy as np
import torch

from benchmarks._generality_models import CLASSES, MODELS
from device_sdk.execution.self_test import golden_inputs
from device_sdk.graph import Subnet, Supernet
from device_sdk.paths import sample_uniformly, subnet_count
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import LoadedStretch
from packager.expansion import expand
from packager.export import ExportedBlocks, export_blocks
from packager.tracing import trace

BATCHES = (1, 3, 64)
SUBNETS = 20
TOLERANCE = 1e-4  # of the largest logit, or of 1
MAX_SPAN = 3


def check(name: str) -> dict[str, object]:
    """Cut points, blocks, subnets, the largest error of the original path, and of subnets alone against composed."""
    started = time.monotonic()
    torch.manual_seed(0)
    model, example = MODELS[name]()
    expansion = expand(trace(model, example), max_span=MAX_SPAN)
    exported = export_blocks(expansion)
    supernet = expansion.supernet()
    exported_s = time.monotonic() - started
    runtime = OnnxRuntime(threads=1)
    original = runtime.load(exported.stretch(supernet.original.block_ids))
    with torch.no_grad():
        expected = model(example).numpy()
    original_error = _error(original.run([example.numpy()])[-1], expected)
    original.close()
    subnets = list(dict.fromkeys(sample_uniformly(supernet, count=4 * SUBNETS, random=SplitMix64(0))))[:SUBNETS]
    subnet_error = _compare(runtime, exported, supernet, subnets)
    return {
        "model": name,
        "cut_points": len(supernet.cut_points),
        "blocks": len(supernet.blocks),
        "added_blocks": len(expansion.added),
        "subnets": str(subnet_count(supernet)),
        "subnets_run": len(subnets),
        "original_error": original_error,
        "subnet_error": subnet_error,
        "passed": original_error <= TOLERANCE and subnet_error <= TOLERANCE,
        "notes": list(expansion.notes)[:2],
        "export_seconds": round(exported_s, 1),
        "seconds": round(time.monotonic() - started, 1),
        "peak_gb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6, 2),
    }


def _compare(runtime: OnnxRuntime, exported: ExportedBlocks, supernet: Supernet, subnets: Sequence[Subnet]) -> float:
    """Run subnets composed and block by block at all batch sizes; the largest relative difference between the two."""
    used = dict.fromkeys(name for subnet in subnets for name in subnet.block_ids)
    alone = {name: runtime.load(exported.stretch([name])) for name in used}
    worst = 0.0
    for subnet in subnets:
        composed = runtime.load(exported.stretch(subnet.block_ids))
        for batch in BATCHES:
            worst = max(worst, _difference(supernet, subnet, composed, alone, batch))
        composed.close()
    return worst


def _difference(
    supernet: Supernet, subnet: Subnet, composed: LoadedStretch, alone: Mapping[str, LoadedStretch], batch: int
) -> float:
    inputs = golden_inputs(supernet.cut_points[0], seed=batch, batch=batch)
    found = composed.run(inputs)[-1]
    if found.shape != (batch, CLASSES):
        raise ValueError(f"{subnet} answers {found.shape} at batch {batch}")
    features = inputs
    for block in subnet.block_ids:
        features = alone[block].run(features)
    return _error(found, features[-1])


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    """Largest difference over the largest magnitude, or over 1; infinite where a number is none."""
    if not (np.isfinite(found).all() and np.isfinite(expected).all()):
        return float("inf")
    return float(np.abs(found - expected).max() / max(1.0, np.abs(expected).max()))


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
