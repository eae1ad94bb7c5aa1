from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor, nn

from device_sdk.supernet.blocks import TensorSpec
from packager.errors import ModelLoadError
from packager.exporting.onnx_exporter import export_whole
from packager.inputs.onnx_model.importing import import_onnx
from packager.torch_noise import torch_silenced

SHAPE = (3, 16, 16)
NORMAL = np.random.default_rng(0).normal


class Small(nn.Module):
    """Convolutions, batch norm, attention over patches and a head, all with weights that matter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Hardswish(), nn.MaxPool2d(2))
        self.body = nn.Conv2d(8, 8, 3, padding=1, groups=2)
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.queries = nn.Linear(8, 24)
        self.norm = nn.LayerNorm(8)
        self.head = nn.Linear(8, 4)

    def forward(self, images: Tensor) -> Tensor:
        features = self.stem(images)
        features = nn.functional.interpolate(features + torch.relu(self.body(features)), scale_factor=0.5)
        tokens = features.flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(images.shape[0], -1, -1), tokens], 1)
        queries, keys, values = self.queries(self.norm(tokens)).reshape(images.shape[0], -1, 3, 2, 4).unbind(2)
        weights = torch.softmax(queries.transpose(1, 2) @ keys.permute(0, 2, 3, 1) / 2, -1)
        tokens = tokens + (weights @ values.transpose(1, 2)).transpose(1, 2).flatten(2)
        return self.head(nn.functional.gelu(tokens[:, 0]))


def save(path: Path, *, dynamo: bool, opset: int, batch: int | None = None) -> Path:
    example, axes = torch.zeros(batch or 4, *SHAPE), {"input": {0: "batch"}, "output": {0: "batch"}}
    free = ({0: torch.export.Dim("batch", min=1, max=64)},)
    kind = {"dynamic_shapes": free if batch is None else None, "external_data": False, "verbose": False}
    if not dynamo:
        kind = {"dynamic_axes": axes if batch is None else None}
    with torch_silenced():
        torch.onnx.export(
            Small().eval(),
            (example,),
            str(path),
            dynamo=dynamo,
            opset_version=opset,
            input_names=["input"],
            output_names=["output"],
            **kind,
        )
    return path


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        import_onnx(path)
    said = f"{caught.value} {caught.value.hint}"
    assert all(word in said for word in words), said
    assert "\n" not in str(caught.value)


def graph(
    path: Path,
    nodes: list[onnx.NodeProto],
    *,
    constants: dict[str, np.ndarray] | None = None,
    shape: tuple[object, ...] = ("batch", *SHAPE),
    outputs: tuple[str, ...] = ("y",),
    kind: int = TensorProto.FLOAT,
    domains: tuple[str, ...] = (),
    opset: int = 17,
) -> Path:
    """A hand-made model from ``x`` to ``outputs``."""
    made = helper.make_graph(
        nodes,
        "graph",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in (constants or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    onnx.save(helper.make_model(made, opset_imports=imports, ir_version=10), path)
    return path


def node(operator: str, *inputs: str, output: str = "y", **attributes: object) -> onnx.NodeProto:
    return helper.make_node(operator, list(inputs), [output], name=f"{operator}_{output}", **attributes)


@pytest.mark.parametrize(("dynamo", "opset"), [(False, 13), (False, 17), (True, 18), (True, 21)])
def test_both_exporters_give_the_module_back(tmp_path: Path, dynamo: bool, opset: int):
    found = import_onnx(save(tmp_path / "small.onnx", dynamo=dynamo, opset=opset))

    images = torch.randn(5, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(found.module(images), Small().eval()(images), atol=1e-5, rtol=1e-4)
    kinds = [type(layer) for layer in found.module.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.Linear)) == (2, 2)
    assert found.input_shape == SHAPE


@pytest.mark.parametrize("dynamo", [False, True])
def test_a_file_for_one_image_takes_any_batch(tmp_path: Path, dynamo: bool):
    found = import_onnx(save(tmp_path / "one.onnx", dynamo=dynamo, opset=18, batch=1))

    images = torch.randn(5, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(found.module(images), Small().eval()(images), atol=1e-5, rtol=1e-4)
    assert any("batches of 1" in note for note in found.notes)


def test_numbers_before_tensors_can_be_exported_again(tmp_path: Path):
    nodes = [
        *(node("Mul", "h", "x", output="a"), node("Sub", "h", "a", output="b"), node("Div", "h", "b", output="c")),
        *(node("Greater", "h", "c", output="g"), node("Where", "g", "h", "c")),
    ]
    found = import_onnx(graph(tmp_path / "numbers.onnx", nodes, constants={"h": np.array(0.5, dtype="f")}))

    assert export_whole(found.module, TensorSpec("input", SHAPE, "float32", 0.0, 1.0))


_WEIGHT = NORMAL(size=(4, 3, 3, 3)).astype(np.float32)
_OPERATORS = {
    "uneven pads": ([node("Conv", "x", "w", pads=[0, 1, 1, 0])], {"w": _WEIGHT}),
    "automatic pads": ([node("Conv", "x", "w", auto_pad="SAME_UPPER", strides=[2, 2])], {"w": _WEIGHT}),
    "transposed": ([node("ConvTranspose", "x", "w", strides=[2, 2])], {"w": NORMAL(size=(3, 4, 2, 2)).astype("f")}),
    "average": ([node("AveragePool", "x", kernel_shape=[3, 3], pads=[1, 1, 1, 1], ceil_mode=0)], {}),
    "depth to space": (
        [node("Tile", "x", "n", output="t"), node("DepthToSpace", "t", blocksize=2)],
        {"n": np.array([1, 4, 1, 1])},
    ),
    "space to depth": ([node("SpaceToDepth", "x", blocksize=2)], {}),
    "reversed": (
        [node("Slice", "x", "s", "e", "a", "t")],
        {"s": np.array([-1]), "e": np.array([-(2**63) + 1]), "a": np.array([1]), "t": np.array([-1])},
    ),
    "padding": ([node("Pad", "x", "p", mode="reflect")], {"p": np.array([0, 0, 1, 2, 0, 0, 2, 1])}),
    "pads of a shape": (
        [
            *(
                node("Shape", "x", output="n"),
                node("Slice", "n", "i", "j", output="b"),
                node("Mul", "b", "i", output="z"),
            ),
            *(node("Abs", "z", output="a"), node("Concat", "a", "p", axis=0, output="l")),
            *(node("Reshape", "l", "s", output="t"), node("Transpose", "t", perm=[1, 0], output="u")),
            *(
                node("Transpose", "u", perm=[1, 0], output="v"),
                node("Reshape", "v", "f", output="q"),
                node("Pad", "x", "q"),
            ),
        ],
        {
            **{"i": np.array([0]), "j": np.array([1]), "s": np.array([2, 4]), "f": np.array([-1])},
            "p": np.array([0, 1, 2, 0, 0, 2, 1]),
        },
    ),
    "resize": (
        [node("Resize", "x", "", "s", mode="linear", coordinate_transformation_mode="half_pixel")],
        {"s": np.array([1, 1, 2, 2], dtype=np.float32)},
    ),
    "group norm": (
        [node("InstanceNormalization", "x", "g", "b")],
        {"g": _WEIGHT[0, :, 0, 0], "b": _WEIGHT[1, :, 0, 0]},
    ),
    "slope": ([node("PRelu", "x", "s")], {"s": NORMAL(size=(3, 1, 1)).astype("f")}),
    "where": ([node("Greater", "x", "z", output="c"), node("Where", "c", "x", "z")], {"z": np.array(0.1, dtype="f")}),
    "gather": ([node("Gather", "x", "i", axis=3)], {"i": np.array([0, 5, -1])}),
    "extremes": ([node("Min", "x", "z", output="m"), node("Max", "m", "x")], {"z": np.array(0.1, dtype="f")}),
    "norm": ([node("ReduceL2", "x", axes=[1], keepdims=1, output="n"), node("Div", "x", "n")], {}),
    "einsum": ([node("Einsum", "x", "w", equation="bchw,kc->bkhw")], {"w": NORMAL(size=(5, 3)).astype("f")}),
}


@pytest.mark.parametrize("case", _OPERATORS)
def test_operators_answer_like_the_runtime(tmp_path: Path, case: str):
    nodes, constants = _OPERATORS[case]

    found = import_onnx(graph(tmp_path / "one.onnx", nodes, constants=constants))

    assert found.difference < 1e-4


def test_an_operator_without_an_import_is_named_with_its_node(tmp_path: Path):
    assert_refused(graph(tmp_path / "det.onnx", [node("NonZero", "x")]), "NonZero", "NonZero_y", ".pt2")


def test_custom_operators_are_named_with_their_domain(tmp_path: Path):
    path = graph(tmp_path / "own.onnx", [node("Fast", "x", domain="com.example")], domains=("com.example",))

    assert_refused(path, "Fast", "com.example", "Fast_y")


def test_quantised_models_are_refused_with_what_to_give(tmp_path: Path):
    constants = {"s": np.array(0.1, dtype="f"), "z": np.array(0, dtype=np.int8)}
    nodes = [node("QuantizeLinear", "x", "s", "z", output="q"), node("DequantizeLinear", "q", "s", "z")]

    assert_refused(graph(tmp_path / "int8.onnx", nodes, constants=constants), "quantised", "float model", "int8")


def test_half_precision_becomes_single_with_a_note(tmp_path: Path):
    nodes, weight = [node("Conv", "x", "w")], _WEIGHT.astype(np.float16)

    found = import_onnx(graph(tmp_path / "half.onnx", nodes, constants={"w": weight}, kind=TensorProto.FLOAT16))

    assert {value.dtype for value in found.module.parameters()} == {torch.float32}
    assert any("half precision" in note for note in found.notes)


def test_several_outputs_and_open_ranks_are_refused(tmp_path: Path):
    two = [node("Relu", "x"), node("Neg", "x", output="z")]

    assert_refused(graph(tmp_path / "two.onnx", two, outputs=("y", "z")), "2 outputs")
    assert_refused(graph(tmp_path / "rank.onnx", [node("Relu", "x")], shape=None), "axes")  # type: ignore[arg-type]
    assert_refused(graph(tmp_path / "batch.onnx", [node("Relu", "x")], shape=SHAPE), "no batch axis")
    assert_refused(graph(tmp_path / "open.onnx", [node("Relu", "x")], shape=("b", 3, "h", "w")), "--input-shape")


def test_control_flow_is_refused(tmp_path: Path):
    inner = helper.make_graph([node("Relu", "x", output="r")], "g", [], [helper.make_tensor_value_info("r", 1, None)])
    path = graph(
        tmp_path / "if.onnx",
        [node("If", "c", then_branch=inner, else_branch=inner)],
        constants={"c": np.array(True)},
    )

    assert_refused(path, "control flow", "If_y")


def test_weights_beside_the_file_are_read_and_elsewhere_refused(tmp_path: Path):
    path = graph(tmp_path / "beside.onnx", [node("Conv", "x", "w")], constants={"w": _WEIGHT})
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)

    assert import_onnx(path).difference < 1e-4

    (tmp_path / "inner").mkdir()
    moved = tmp_path / "inner" / "beside.onnx"
    proto = onnx.load(path, load_external_data=False)
    next(
        entry for entry in proto.graph.initializer[0].external_data if entry.key == "location"
    ).value = "../weights.bin"
    moved.write_bytes(proto.SerializeToString())
    assert_refused(moved, "../weights.bin", "same folder")


def test_what_is_no_onnx_file_is_refused(tmp_path: Path):
    (tmp_path / "text.onnx").write_text("no model")
    (tmp_path / "empty.onnx").write_bytes(b"")

    assert_refused(tmp_path / "text.onnx", "not an ONNX file")
    assert_refused(tmp_path / "empty.onnx", "not an ONNX file")
    assert_refused(tmp_path / "missing.onnx", "cannot read")


def test_huge_constants_are_not_made(tmp_path: Path):
    nodes = [node("ConstantOfShape", "n", output="c"), node("Add", "x", "c")]

    assert_refused(graph(tmp_path / "huge.onnx", nodes, constants={"n": np.array([2**20, 2**20])}), "ConstantOfShape")
