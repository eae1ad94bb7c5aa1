"""What the conformance tests run on each runtime: the same few stretches, made for it. A new one: a line in KITS."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pytest

from device_sdk.fragments.composition import Stretch
from device_sdk.runtimes import RUNTIMES, make_runtime
from device_sdk.supernet.blocks import TensorSpec

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)
ONE, OTHER = (TensorSpec("cut_0", (4,)),), (TensorSpec("cut_1", (3,)),)
PAIRS = [tuple(TensorSpec(f"cut_{index}_{n}", (2, 3)) for n in range(2)) for index in range(2)]
EXIT = TensorSpec("exit_x", (3,))


@dataclass(frozen=True)
class Kit:
    """Stretches for one runtime. ``matmul``: samples [4] @ WEIGHT. ``sum_and_difference``: of two tensors [2, 3].

    ``with_exit``: matmul, and a branch behind it that doubles. ``broken``: what must be refused, by what is wrong.
    """

    name: str
    matmul: Stretch
    sum_and_difference: Stretch
    with_exit: Stretch
    broken: Mapping[str, Stretch]


@pytest.fixture(scope="session")
def onnx_stretch() -> Callable[..., Stretch]:
    """Makes a stretch of one fragment."""
    onnx = pytest.importorskip("onnx", reason="needs the extra: pip install 'pathweave[dev]'")

    def make(nodes, weights=(), *, inputs=ONE, outputs=OTHER) -> Stretch:
        initializers = [onnx.numpy_helper.from_array(value, name) for name, value in weights]
        described = [onnx.helper.make_node(*node) for node in nodes]
        fragment = onnx.GraphProto(node=described, initializer=initializers).SerializeToString()
        return Stretch((fragment,), inputs, outputs, ir_version=10, opset=20)

    return make


def _onnx_kit(request: pytest.FixtureRequest) -> Kit:
    make = request.getfixturevalue("onnx_stretch")
    product = ("MatMul", ["cut_0", "a/w"], ["cut_1"])
    pair = [
        ("Add", ["cut_0_0", "cut_0_1"], ["cut_1_0"]),
        ("Sub", ["cut_0_0", "cut_0_1"], ["cut_1_1"]),
    ]
    matmul = make([product], [("a/w", WEIGHT)])
    return Kit(
        "onnxruntime",
        matmul,
        make(pair, inputs=PAIRS[0], outputs=PAIRS[1]),
        make(
            [product, ("Add", ["cut_1", "cut_1"], ["exit_x"])],
            [("a/w", WEIGHT)],
            outputs=(*OTHER, EXIT),
        ),
        {
            "unknown operator": make([("Abracadabra", ["cut_0"], ["cut_1"])]),
            "unknown input": make([("Relu", ["nowhere"], ["cut_1"])]),
            "no output": make([("Relu", ["cut_0"], ["elsewhere"])]),
            "no node": make([]),
            "another runtime's": replace(matmul, runtime="executorch", entry_points=("forward",)),
        },
    )


@pytest.fixture(scope="session")
def executorch_program() -> bytes:
    """A program of three methods, delegated to XNNPACK, that takes at most 16 samples at once."""
    reason = "needs the extra: pip install 'pathweave[executorch]'"
    torch = pytest.importorskip("torch", reason=reason)
    exir = pytest.importorskip("executorch.exir", reason=reason)
    partition = pytest.importorskip("executorch.backends.xnnpack.partition.xnnpack_partitioner", reason=reason)

    class Matmul(torch.nn.Linear):
        def __init__(self) -> None:
            super().__init__(4, 3, bias=False)
            self.weight.data = torch.from_numpy(WEIGHT.T.copy())

    class SumAndDifference(torch.nn.Module):
        def forward(self, first, second):
            return first + second, first - second

    class Double(torch.nn.Module):
        def forward(self, features):
            return features + features

    batch = torch.export.Dim("batch", min=1, max=16)

    def exported(module, *shapes):
        examples = tuple(torch.ones(2, *shape) for shape in shapes)  # not one tensor twice: it would be one input
        return torch.export.export(module, examples, dynamic_shapes=tuple({0: batch} for _ in shapes))

    methods = {
        "matmul": exported(Matmul(), (4,)),
        "both": exported(SumAndDifference(), (2, 3), (2, 3)),
        "double": exported(Double(), (3,)),
    }
    lowered = exir.to_edge_transform_and_lower(methods, partitioner=[partition.XnnpackPartitioner()])
    return lowered.to_executorch().buffer


def _executorch_kit(request: pytest.FixtureRequest) -> Kit:
    program = request.getfixturevalue("executorch_program")

    def make(*methods: str, data: bytes = program, inputs=ONE, outputs=OTHER, branch: bool = False) -> Stretch:
        return Stretch((data,) * len(methods), inputs, outputs, 10, 20, "executorch", methods, branch)

    return Kit(
        "executorch",
        make("matmul"),
        make("both", inputs=PAIRS[0], outputs=PAIRS[1]),
        make("matmul", "double", outputs=(*OTHER, EXIT), branch=True),
        {
            "no program": make("matmul", data=b"no program at all"),
            "empty": make("matmul", data=b""),
            "truncated": make("matmul", data=program[: len(program) // 2]),
            "unknown method": make("nowhere"),
            "another runtime's": replace(make("matmul"), runtime="onnxruntime", entry_points=()),
        },
    )


KITS = {"onnxruntime": _onnx_kit, "executorch": _executorch_kit}


@pytest.fixture(scope="session", params=sorted(RUNTIMES))
def kit(request: pytest.FixtureRequest) -> Kit:
    """The stretches of each registered runtime in turn; skipped with the reason where one is not installed."""
    return KITS[request.param](request)


@pytest.fixture(scope="session")
def engine(kit: Kit):
    """That runtime, on one thread."""
    return make_runtime(kit.name, threads=1)
