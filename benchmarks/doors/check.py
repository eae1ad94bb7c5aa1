"""Checks the files of one network in a separate process: ``python -m benchmarks.doors.check NAME`` prints the rows."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from benchmarks.doors.files import Export, exports_of, write
from benchmarks.generality.models import MODELS
from device_sdk.errors import PathweaveError
from device_sdk.machine import usable_cores
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.paths import subnet_count
from packager.exporting.export import export_blocks
from packager.exporting.verification import ROUNDING_RATIO
from packager.inputs.exported_program.importing import import_program
from packager.inputs.imported_model import ImportedModel
from packager.inputs.onnx_model.importing import import_onnx
from packager.supernet.expansion import Expansion, expand
from packager.torch_noise import torch_silenced
from packager.tracing.traced_model import trace

EXAMPLES = 4
MAX_SPAN = 3
SHRINK_RATES = (0.5,)
TOLERANCE = 1e-4  # of the largest answer

Row = dict[str, object]


def check(name: str) -> list[Row]:
    """A row for each file of the network."""
    torch.manual_seed(0)
    model, inputs = MODELS[name]()
    example = inputs[:EXAMPLES]
    own = expand(trace(model, example), max_span=MAX_SPAN, shrink_rates=SHRINK_RATES)
    with tempfile.TemporaryDirectory() as folder:
        return [_checked(name, export, model, example, own, Path(folder)) for export in exports_of(name)]


def _checked(name: str, export: Export, model: nn.Module, example: torch.Tensor, own: Expansion, folder: Path) -> Row:
    row: Row = {"network": name, "file": export.kind, "exporter": export.exporter, "opset": export.opset}
    row |= {"fixed_batch": export.fixed, "exported": True, "passed": False}
    try:
        with torch_silenced():
            path = write(export, model, example, folder)
    except Exception as error:  # exporters raise many unrelated types
        return row | {"exported": False, "reason": f"the exporter fails: {_line(error)}"}
    started = time.monotonic()
    try:
        found = import_program(path) if export.kind == "pt2" else import_onnx(path)
        row |= {"difference": found.difference, "notes": list(found.notes)}
        if export.kind == "pt2":
            row |= _as_module(found, example, own, shrunk=not export.fixed)
        else:
            row |= _packaged(found, model, example)
    except PathweaveError as error:
        row["reason"] = f"{type(error).__name__}: {_line(error)}"
    return row | {"seconds": round(time.monotonic() - started, 1)}


def _as_module(found: ImportedModel, example: torch.Tensor, own: Expansion, *, shrunk: bool) -> Row:
    """Compares cut points, blocks and subnets with the module's; ``shrunk``: with shrunk blocks, which take time."""
    if not shrunk:
        own = own.without(block.id for block in own.blocks if block.kind == "shrunk")
    other = expand(trace(found.module, example), max_span=MAX_SPAN, shrink_rates=SHRINK_RATES if shrunk else ())
    row: Row = {"cut_points": len(other.traced.cuts), "subnets": str(subnet_count(other.supernet()))}
    shapes = [[[spec.shape for spec in cut] for cut in one.traced.cuts] for one in (own, other)]
    if shapes[0] != shapes[1]:
        return row | {"reason": f"{len(other.traced.cuts)} cut points, of the module {len(own.traced.cuts)}"}
    blocks = [{(block.id, block.kind, block.macs, block.parameters) for block in one.blocks} for one in (own, other)]
    differing = sorted(blocks[0] ^ blocks[1])
    return row | ({"reason": f"other blocks: {differing[:2]}"} if differing else {"passed": True})


def _packaged(found: ImportedModel, model: nn.Module, example: torch.Tensor) -> Row:
    """Compares the answers of the imported module's exported blocks with those of the network in the file."""
    supernet = expand(trace(found.module, example), max_span=MAX_SPAN)
    row: Row = {"cut_points": len(supernet.traced.cuts), "subnets": str(subnet_count(supernet.supernet()))}
    originals = supernet.without(block.id for block in supernet.added)
    exported = export_blocks(originals)
    session = OnnxRuntime(threads=usable_cores(), lean=True).load(
        exported.stretch(originals.supernet().original.block_ids)
    )
    answer = session.run([example.numpy()])[-1]
    session.close()
    with torch.no_grad():
        expected = model(example).numpy()
    error = float(np.abs(answer - expected).max() / np.abs(expected).max())
    row["answer_error"] = error
    if error <= max(TOLERANCE, ROUNDING_RATIO * _rounding(model, example, expected)):
        return row | {"passed": True}
    return row | {"reason": f"the packaged blocks answer differently, by {error:.2g} of the largest"}


def _rounding(model: nn.Module, example: torch.Tensor, expected: np.ndarray) -> float:
    """The error of the answers in single precision, as a share of the largest."""
    inputs = example.double() if example.is_floating_point() else example
    model.double()
    try:
        with torch.no_grad():
            exact = model(inputs).numpy()
    finally:
        model.float()
    return float(np.abs(expected - exact).max() / np.abs(exact).max())


def _line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:240]


if __name__ == "__main__":
    print(json.dumps(check(sys.argv[1])))
