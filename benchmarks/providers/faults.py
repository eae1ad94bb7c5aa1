"""Twenty failures of a provider, each brought about for real, and what the SDK says of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from device_sdk.errors import PathweaveError, RuntimeFailedError
from device_sdk.fragments.composition import Stretch
from device_sdk.logs.adaptation_log import Opened, read_log
from device_sdk.runtimes import make_runtime
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.providers import KNOWN, plugin_devices
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.blocks import TensorSpec
from device_sdk.supernet.home import Home

MISSING = ("coreml-1t", "nnapi-1t", "tensorrt-1t", "cuda-1t")
CRASHES = {
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "segmentation fault": "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
    "abort": "import os; os.abort()",
    "ends its process": "import os; os._exit(7)",
}
BAD_OPTIONS = {
    "openvino": {
        "settings that are no JSON": {"load_config": "{"},
        "a number of threads below none": {"load_config": '{"CPU":{"INFERENCE_NUM_THREADS":"-3"}}'},
        "a performance hint that there is not": {"load_config": '{"CPU":{"PERFORMANCE_HINT":"SOON"}}'},
        "a precision that there is not": {"load_config": '{"CPU":{"INFERENCE_PRECISION_HINT":"f7"}}'},
    },
    "qnn": {
        "a library that there is not": {"backend_path": "/nowhere/libQnnHtp.so"},
        "a library that is none": {"backend_path": __file__},
        "a backend that there is not": {"backend_type": "soon"},
        "two ways to name the backend": {"backend_type": "htp", "backend_path": "libQnnHtp.so"},
    },
}
REFUSED = {  # operators that a provider leaves to others
    "openvino": ("Det", "LpPool", "AffineGrid", "Col2Im"),
    "qnn": ("Det", "Hardmax", "AffineGrid", "Col2Im"),
}


@cache
def failing_provider() -> str:
    """OpenVINO where its plug-in takes this processor; else the emulator of Qualcomm's NPU, which runs on any."""
    return "openvino" if plugin_devices("openvino") else "qnn"


@dataclass(frozen=True)
class Fault:
    """One failure: ``said`` is what the SDK reported, None where it was silent; ``answered``: it gave an answer."""

    kind: str
    name: str
    said: str | None
    answered: bool

    @property
    def silent(self) -> bool:
        """True if an answer came from elsewhere and nothing said so."""
        return self.answered and self.said is None

    def row(self) -> dict[str, object]:
        """For the table."""
        return {"what": "fault", "kind": self.kind, "name": self.name, "said": self.said, "silent": self.silent}


def all_faults(bundle: Path, work_folder: Path) -> Iterator[Fault]:
    """Bring about each failure in turn: 4 of each kind."""
    state, provider = work_folder / "faults", failing_provider()
    there = [f"{provider}-1t"]
    for number, home in enumerate(MISSING):
        yield _opened("provider missing", home, bundle, state / f"missing-{number}", [home])
    for number, (name, source) in enumerate(CRASHES.items()):
        with _plugin(state / f"plugin-{number}", source):
            yield _opened("crash at session creation", name, bundle, state / f"crash-{number}", there)
    for number, (name, options) in enumerate(BAD_OPTIONS[provider].items()):
        folder = state / f"options-{number}"
        yield _opened("session creation fails", name, bundle, folder, there, {provider: options})
    for name in REFUSED[provider]:
        yield _refused(name)
    for name in REFUSED[provider]:
        yield _falls_back(name)


def _opened(
    kind: str, name: str, bundle: Path, state: Path, homes: list[str], options: dict[str, dict[str, str]] | None = None
) -> Fault:
    """Open with a second home that fails: an error, or a home that is left out with the reason in the log."""
    try:
        with AdaptiveModel.open(
            bundle, state_folder=state, homes=["cpu-1t", *homes], provider_options=options
        ) as model:
            opened = [line.event for line in read_log(model.log.path) if isinstance(line.event, Opened)][-1]
            return Fault(kind, name, opened.homes_left_out.get(homes[0]), answered=True)
    except PathweaveError as error:
        return Fault(kind, name, str(error), answered=False)


@contextmanager
def _plugin(folder: Path, source: str) -> Iterator[None]:
    """A plug-in of this source in place of the one that is installed, for child processes."""
    package = folder / str(KNOWN[failing_provider()].plugin)
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(source + "\n")
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))


def _refused(operator: str) -> Fault:
    """A model of which the provider takes a part: the report names the operator that it left."""
    session = OnnxRuntime(provider=failing_provider()).load_model(_model(operator, with_more=True))
    try:
        said = f"refused: {session.refused}" if operator in session.refused else None
        return Fault("operator refused", operator, said, answered=True)
    finally:
        session.close()


def _falls_back(operator: str) -> Fault:
    """A model of which the provider takes nothing, so that the processor would run it."""
    runtime = make_runtime(threads=1, homes=(Home(), Home(failing_provider())))
    shape = _SHAPES[operator]
    graph = onnx.ModelProto.FromString(_model(operator, with_more=False)).graph
    ends = (TensorSpec("i", shape), TensorSpec("o", (1,)))
    nodes = onnx.GraphProto(node=graph.node, initializer=graph.initializer).SerializeToString()
    stretch = Stretch(
        (nodes,), ends[:1], ends[1:], 10, 20, home=f"{failing_provider()}-1t", owners=(f"block {operator}",)
    )
    return _ran("runs on the processor silently", operator, partial(runtime.load, stretch))


def _ran(kind: str, name: str, load: Callable[[], object]) -> Fault:
    try:
        load()
    except RuntimeFailedError as error:
        return Fault(kind, name, str(error), answered=False)
    return Fault(kind, name, None, answered=True)


_SHAPES = {"Det": (3, 3), "LpPool": (3, 4, 4), "Hardmax": (3, 3), "AffineGrid": (2, 3), "Col2Im": (4, 4)}


def _model(operator: str, *, with_more: bool) -> bytes:
    """A model of one ``operator``, behind an operator that every provider has."""
    constants = {"AffineGrid": [np.array([1, 1, 2, 2])], "Col2Im": [np.array([4, 4]), np.array([2, 2])]}
    settings: dict[str, object] = {"kernel_shape": [2, 2]} if operator == "LpPool" else {}
    names = [f"c{number}" for number in range(len(constants.get(operator, ())))]
    initializers = [
        onnx.numpy_helper.from_array(one, name) for name, one in zip(names, constants.get(operator, ()), strict=True)
    ]
    nodes = [helper.make_node("Relu", ["i"], ["r"])] if with_more else []
    nodes.append(helper.make_node(operator, ["r" if with_more else "i", *names], ["o"], **settings))
    ends = [helper.make_tensor_value_info("i", TensorProto.FLOAT, ["batch", *_SHAPES[operator]])]
    outputs = [helper.make_tensor_value_info("o", TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", ends, outputs, initializers)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(made.SerializeToString())


def figures_of(faults: list[Fault]) -> dict[str, float]:
    """The number of failures that were brought about, that were reported, and that were silent."""
    return {
        "injected_failures": float(len(faults)),
        "reported_failures": float(sum(one.said is not None for one in faults)),
        "silent_fallbacks": float(sum(one.silent for one in faults)),
    }
