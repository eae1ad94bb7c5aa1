"""int8: weights per channel, activations per tensor (docs/adr/0017-int8-renditions.md, 0023-int8-weights.md).

Static quantisation by ONNX Runtime's tool, block by block, as pairs of QuantizeLinear and DequantizeLinear, which the
runtime fuses into integer operators. The tensor at a cut point has one scale and zero point in all blocks, so the pairs
at the end of a block and at the start of the next are equal and cancel.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import onnx

from device_sdk.files.atomic import storage_errors
from device_sdk.progress import Progress
from device_sdk.supernet.blocks import Quantization
from packager.errors import VerificationError
from packager.exporting.export import ExportedBlocks
from packager.exporting.verification import TorchReference
from packager.renditions.calibration import Calibration, Features, Live, fitted_and_held_back
from packager.renditions.rendition_set import (
    Judged,
    RenditionSet,
    as_fragment,
    inputs_of,
    judge,
    judged_set,
    part_model,
)
from packager.supernet.expansion import Expansion
from packager.torch_noise import torch_silenced

NAME = "int8"
_LEVELS = 255
_FINER = 257  # 16-bit steps in one of 8 bits: both reach from the same minimum to the same maximum
_BATCH = 64
_OF_TRANSFORMERS = frozenset({"LayerNormalization", "RMSNormalization", "Softmax", "Sqrt"})  # older norms have a root
_PRODUCTS = ["Conv", "Gather", "Gemm", "MatMul"]
_FREE_SUMS = {"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": ["Gemm", "MatMul"]}
ActivationBits: TypeAlias = Literal[8, 16]
_PREPROCESSED = ("onnx.quant.pre_process", "onnxruntime.quant")  # metadata set by the tool's preprocessing


def make_int8(exported: ExportedBlocks, calibration: Calibration, progress: Progress, cache: Path) -> RenditionSet:
    """The int8 fragments of all blocks and exits.

    1. measure the range of every cut point along the original path; 2. quantise each part on its real inputs with the
    ranges at its ends fixed; 3. compare with torch on held-out samples. Parts with a large error or
    without quantisable operators are left out. A skip has the same graph in every rendition; its int8 rendition avoids
    a change of rendition between int8 blocks.

    Raises:
        VerificationError: features are not finite, or a fragment's output has another shape.
    """
    quantization = cut_point_ranges(calibration, progress, name=NAME)
    reference = TorchReference(exported.expansion)
    skips = {block.id for block in exported.expansion.blocks if block.properties.skip}
    judged: dict[str, Judged] = {}
    with progress.task(f"quantise to {NAME}", len(exported.own)) as task:
        for index, (live, *smaller) in calibration.features_at_sizes():
            fitting, held_back = fitted_and_held_back(live)
            ranged = [fitting, *(fitted_and_held_back(some)[0] for some in smaller)]
            for part in [part for part, start in reference.starts.items() if start == index]:
                task.note(part)
                if part in skips:
                    graph = onnx.GraphProto.FromString(exported.own[part])
                else:
                    model = part_model(exported, part, calibration.free_axes)
                    read = [inputs_of(exported, part, some) for some in ranged]
                    only = products_only(model.graph)
                    graph = quantised_part(model, part, read, quantization, batch=calibration.batch, products_only=only)
                if part in skips or any(node.op_type == "QuantizeLinear" for node in graph.node):
                    judged[part] = judge(NAME, exported, part, graph, reference, held_back, batch=calibration.batch)
                task.advance()
    return judged_set(NAME, exported, judged, quantization=quantization)


def cut_point_ranges(calibration: Calibration, progress: Progress, *, name: str) -> dict[int, Quantization]:
    """Scale and zero point of every cut point that can be quantised. ``name``: of the rendition, for ``progress``.

    Cut points connected by skips share one, so a tensor passes through a skip without being requantised.
    """
    ends: dict[int, Features] = {}  # minimum and maximum
    with progress.task(f"calibrate {name}", len(calibration.expansion.cut_points)) as task:
        task.note(f"{len(calibration.samples)} samples")
        for index, at_sizes in calibration.features_at_sizes():
            own = [live[0] for live in at_sizes]
            if own[0].dtype == np.float32:
                ends[index] = np.array([limit for some in own for limit in (some.min(), some.max())])
            task.advance()
    linked = _linked_by_skips(calibration.expansion)
    return {index: fitted(np.concatenate([ends[other] for other in linked[index]])) for index in ends}


def _linked_by_skips(expansion: Expansion) -> dict[int, list[int]]:
    """For each cut point all that skips connect it to, itself included."""
    groups = {index: [index] for index in range(len(expansion.cut_points))}
    for block in expansion.blocks:
        if block.properties.skip and groups[block.start] is not groups[block.end]:
            groups[block.start] += groups[block.end]
            groups |= dict.fromkeys(groups[block.end], groups[block.start])
    return groups


def fitted(features: Features) -> Quantization:
    """Scale and zero point that cover the range of the features, 0 included.

    Raises:
        VerificationError: there are features that are not finite.
    """
    low, high = min(float(features.min()), 0.0), max(float(features.max()), 0.0)
    if not np.isfinite([low, high]).all():
        raise VerificationError("the model computes features that are not finite, which cannot be quantised")
    scale = np.float32((high - low) / _LEVELS) or np.float32(1.0)
    return Quantization(scale=float(scale), zero_point=int(np.clip(round(-low / float(scale)), 0, _LEVELS)))


def quantised_part(
    model: onnx.ModelProto,
    part: str,
    inputs: Sequence[Live],
    quantization: Mapping[int, Quantization],
    *,
    batch: int,
    activation_bits: ActivationBits = 8,
    reduce_range: bool = True,
    products_only: bool = False,
) -> onnx.GraphProto:
    """The fragment with int8 weights and a pair around every activation, or those alone that weights multiply.

    The latter (``products_only``) have ranges of their own, also at the ends of the part. ``inputs``: of the model,
    [count, *shape] each, once for each input size that ranges are measured at. The others as of ``quantised``.
    """
    finer, kind = (1, np.uint8) if activation_bits == 8 else (_FINER, np.uint16)
    given = {} if products_only else {f"cut_{index}": found for index, found in quantization.items()}
    ends = {value.name for value in (*model.graph.input, *model.graph.output)} & given.keys()
    overrides = {
        name: {
            "scale": np.array(given[name].scale / finer, dtype=np.float32),
            "zero_point": np.array(given[name].zero_point * finer, dtype=kind),
        }
        for name in ends
    }
    options = {
        "TensorQuantOverrides": {name: [one] for name, one in overrides.items()},
        "QDQKeepRemovableActivations": _clips_below(model, given),
    }
    made = quantised(
        model,
        *inputs,
        extra_options=options,
        batch=batch,
        activation_bits=activation_bits,
        reduce_range=reduce_range,
        products_only=products_only,
    )
    return as_fragment(made, part)


def quantised(
    model: onnx.ModelProto,
    *inputs: Live,
    extra_options: Mapping[str, Any] | None = None,
    batch: int = _BATCH,
    activation_bits: ActivationBits = 8,
    reduce_range: bool = True,
    products_only: bool = False,
) -> onnx.ModelProto:
    """``model`` in int8, calibrated on all of ``inputs``, [count, *shape] for each of its inputs. Changes its metadata.

    What leads to a logarithm stays as it is.

    ``extra_options``: of ONNX Runtime's tool. ``batch``: of the calibration. ``activation_bits``: 16 need opset 21.
    ``reduce_range``: weights within ±64, since x86 without VNNI adds two products in 16 bits. ``products_only``: what
    weights multiply, and tables of weights; sums, norms and attention stay in fp32.

    Raises:
        StorageError: no disk space for temporary files.
    """
    from onnxruntime import quantization as tool

    class Reader(tool.CalibrationDataReader):
        def __init__(self) -> None:
            self._batches = iter([part for live in inputs for part in _split(live, -(-len(live[0]) // batch))])

        def get_next(self) -> dict[str, Features] | None:
            some = next(self._batches, None)
            names = [one.name for one in model.graph.input]
            return None if some is None else dict(zip(names, some, strict=True))

    kept = _before_logarithms(model.graph)
    options = dict(extra_options or {}) | (_FREE_SUMS if products_only else {})
    model.metadata_props.add(key=_PREPROCESSED[0], value=_PREPROCESSED[1])
    with storage_errors(Path(tempfile.gettempdir())), tempfile.TemporaryDirectory() as folder, torch_silenced():
        path = Path(folder) / "quantised.onnx"
        tool.quantize_static(
            model,
            path,
            Reader(),
            quant_format=tool.QuantFormat.QDQ,
            per_channel=True,
            reduce_range=reduce_range,
            activation_type=tool.QuantType.QUInt8 if activation_bits == 8 else tool.QuantType.QUInt16,
            weight_type=tool.QuantType.QInt8,
            calibrate_method=tool.CalibrationMethod.MinMax,
            op_types_to_quantize=_PRODUCTS if products_only else None,
            nodes_to_exclude=kept,
            extra_options=options,
        )
        return onnx.load(path)


def products_only(graph: onnx.GraphProto) -> bool:
    """True for a part of a transformer: one that normalises over channels, or has an attention.

    What flows between its layers has a few channels a hundred times larger than the others, so that one scale for the
    tensor leaves nothing of these; products average the rounding of many channels, sums do not.
    """
    return any(node.op_type in _OF_TRANSFORMERS for node in graph.node)


def _before_logarithms(graph: onnx.GraphProto) -> list[str]:
    """The names of the nodes that lead to a logarithm, it included: given to those that have none.

    A logarithm magnifies the rounding of small values without bound: of a spectrogram in 8 bits only the loudest
    frequencies would be left.
    """
    wanted: set[str] = set()
    found = []
    for number, node in reversed(list(enumerate(graph.node))):
        if node.op_type == "Log" or wanted & set(node.output):
            wanted |= set(node.input)
            node.name = node.name or f"node_{number}"
            found.append(node.name)
    return found


def _split(live: Live, parts: int) -> Iterator[Live]:
    return zip(*(np.array_split(features, parts) for features in live), strict=True)


def _clips_below(model: onnx.ModelProto, given: Mapping[str, Quantization]) -> bool:
    """True if the part ends with an activation whose bounds the cut point's range exceeds.

    The tool drops a ReLU or Clip before a pair if the quantised range implies it. The range of a cut point may be
    wider, if other blocks end there without the activation.
    """
    (output,) = model.graph.output
    last = [node.op_type for node in model.graph.node if output.name in node.output]
    if output.name not in given:
        return False
    return "Clip" in last or ("Relu" in last and given[output.name].zero_point != 0)
