"""Calibration data, and looking into fragments and into what ONNX Runtime makes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import onnx
import onnxruntime
import pytest
import torch

from device_sdk.data.preprocessing import prepare
from device_sdk.fragments.composition import compose
from device_sdk.progress import SilentProgress
from device_sdk.runtimes import OnnxRuntime
from packager.exporting.export import ExportedBlocks
from packager.renditions.calibration import Calibration
from packager.renditions.int8 import make_int8
from packager.renditions.rendition_set import RenditionSet
from packager.supernet.expansion import Expansion


class Recorded(SilentProgress):
    """Progress that keeps what it was told."""

    def __init__(self) -> None:
        self.tasks: dict[str, float] = {}

    @contextmanager
    def task(self, name: str, total: float, *, done: float = 0.0) -> Iterator[Recorded]:
        self.tasks[name] = total
        self._name = name
        yield self

    def advance(self, amount: float = 1.0) -> None:
        self.tasks[self._name] -= amount

    def note(self, text: str) -> None:
        pass


@pytest.fixture
def recorded() -> Recorded:
    return Recorded()


@pytest.fixture(scope="session")
def digit_images(digits, digits_preprocessing) -> Callable[[str, int], torch.Tensor]:
    """Prepared digits of a part."""
    return lambda part, count: torch.from_numpy(
        prepare(digits(part, count).images, digits_preprocessing, input_shape=(1, 8, 8))
    )


@pytest.fixture(scope="session")
def calibrate(digit_images) -> Callable[[Expansion], Calibration]:
    return lambda expansion: Calibration(expansion, digit_images("train", 120))


@pytest.fixture(scope="session")
def tiny_int8(tiny_exported, calibrate, tmp_path_factory) -> RenditionSet:
    """The tiny supernet in int8."""
    return make_int8(tiny_exported, calibrate(tiny_exported.expansion), SilentProgress(), tmp_path_factory.mktemp("c"))


@pytest.fixture(scope="session")
def in_place_of() -> Callable[..., ExportedBlocks]:
    """Exported blocks in which those of a made kind stand in for their fp32 fragments; all of them, or those named."""

    def build(exported: ExportedBlocks, made: RenditionSet, parts: tuple[str, ...] | None = None) -> ExportedBlocks:
        own = {part: data for part, data in made.own.items() if parts is None or part in parts}
        needs = {part: made.needs.get(part, ()) for part in own}
        return replace(
            exported,
            own={**exported.own, **own},
            shared={**exported.shared, **made.shared},
            needs=exported.needs | needs,
        )

    return build


@pytest.fixture
def optimized(tmp_path) -> Callable[[bytes], onnx.GraphProto]:
    """The graph that ONNX Runtime makes of a model with the options of our sessions."""

    def optimize(model: bytes) -> onnx.GraphProto:
        options = OnnxRuntime(threads=1).session_options()
        options.optimized_model_filepath = str(tmp_path / "optimized.onnx")
        options.log_severity_level = 3
        onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        return onnx.load(tmp_path / "optimized.onnx").graph

    return optimize


@pytest.fixture
def operators(optimized) -> Callable[[bytes], Counter[str]]:
    """How often each operator is in the graph that ONNX Runtime makes of a model."""
    return lambda model: Counter(node.op_type for node in optimized(model).node)


@pytest.fixture(scope="session")
def composed() -> Callable[[ExportedBlocks, list[str]], bytes]:
    return lambda exported, blocks: compose(exported.stretch(blocks))


@pytest.fixture
def work(tmp_path) -> Path:
    """A folder in which work survives an interruption."""
    return tmp_path
