"""Renditions besides fp32, one module per kind. A new one: a module, a line in ``KINDS``, its name in ``recipe.py``."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TypeAlias

from device_sdk.progress import Progress
from device_sdk.supernet.blocks import Golden
from packager.exporting.export import ExportedBlocks
from packager.exporting.onnx_exporter import OPSET
from packager.npu.chips import DEFAULT_CHIPS, chips_named
from packager.npu.compiler import compiler_version
from packager.renditions.calibration import Calibration
from packager.renditions.fp16 import make_fp16
from packager.renditions.htp import NAME as HTP
from packager.renditions.htp import make_htp
from packager.renditions.int8 import make_int8
from packager.renditions.low_bit import KINDS as LOW_BIT
from packager.renditions.rendition_set import RenditionSet
from packager.renditions.xnnpack import make_xnnpack

FP32 = "fp32"

# arguments: exported blocks, calibration data, progress, and a cache folder that survives interruptions
MakeRenditions: TypeAlias = Callable[[ExportedBlocks, Calibration, Progress, Path], RenditionSet]
KINDS: dict[str, MakeRenditions] = {
    "int8": make_int8,
    "fp16": make_fp16,
    "xnnpack": make_xnnpack,
    HTP: partial(make_htp, chips=chips_named(DEFAULT_CHIPS)),
    **LOW_BIT,
}


def require_kinds(names: Iterable[str]) -> None:
    """Check before any training that the libraries of the kinds in ``names`` are installed (MissingExtraError)."""
    if HTP in names:
        compiler_version()


def make_renditions(
    names: Iterable[str],
    exported: ExportedBlocks,
    golden: Mapping[str, Golden],
    calibration: Calibration,
    *,
    progress: Progress,
    cache: Path,
    chips: Sequence[str] = DEFAULT_CHIPS,
) -> tuple[RenditionSet, ...]:
    """The fp32 renditions, as exported and verified (``golden``), and those of the other kinds in ``names``.

    ``chips``: that the rendition htp is compiled for.

    Raises:
        PackagingError: a kind cannot be made; see the kinds.
        MissingExtraError: a kind's library is not installed.
    """
    sets = [
        RenditionSet(
            name=FP32,
            runtime="onnxruntime",
            own=exported.own,
            shared=exported.shared,
            needs=exported.needs,
            golden=golden,
            opset=OPSET,
        )
    ]
    wanted = set(names)
    kinds: dict[str, MakeRenditions] = {**KINDS, HTP: partial(make_htp, chips=chips_named(chips))}
    sets += [make(exported, calibration, progress, cache) for name, make in kinds.items() if name in wanted]
    return tuple(sets)
