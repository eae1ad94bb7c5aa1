from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from packager.errors import ModelLoadError
from packager.inputs.exported_program.importing import import_program
from packager.tracing.traced_model import trace

SHAPE = (3, 16, 16)


class Small(nn.Module):
    """Convolutions, batch norm, attention over patches, dropout and a head."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True))
        self.body = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8), nn.ReLU())
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=False)
        self.norm = nn.LayerNorm(8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 4)
        for layer in self.modules():
            if isinstance(layer, nn.BatchNorm2d):
                layer.running_mean.normal_()
                layer.running_var.uniform_(0.5, 2)

    def forward(self, images: Tensor) -> Tensor:
        features = self.body(self.stem(images))
        tokens = nn.functional.avg_pool2d(features, 4).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(images.shape[0], -1, -1), tokens], 1).transpose(0, 1)
        tokens = tokens + self.attention(tokens, tokens, tokens, need_weights=False)[0]
        return self.head(self.drop(self.norm(tokens[0])))


def save(path: Path, model: nn.Module, *, batch: int | None = None, extra: dict[str, str] | None = None) -> Path:
    """The exported program of ``model``, for any batch or a fixed one."""
    free = None if batch else ({0: torch.export.Dim("batch", min=1, max=65536)},)
    program = torch.export.export(model, (torch.zeros(batch or 4, *SHAPE),), dynamic_shapes=free)
    torch.export.save(program, path, extra_files=extra)
    return path


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved") / "small.pt2", Small().eval(), extra={"class_names": '["a", "b"]'})


def rewritten(source: Path, target: Path, change: Callable[[str, bytes], bytes | None], **added: bytes) -> Path:
    """A copy of an archive with parts changed, left out (None) or added."""
    with zipfile.ZipFile(source) as old, zipfile.ZipFile(target, "w") as new:
        for entry in old.infolist():
            data = change(entry.filename, old.read(entry))
            if data is not None:
                new.writestr(entry.filename, data)
        for name, data in added.items():
            new.writestr(f"small/{name.replace('__', '/')}", data)
    return target


def with_graph(source: Path, target: Path, change: Callable[[dict], None]) -> Path:
    def one(name: str, data: bytes) -> bytes:
        if not name.endswith("models/model.json"):
            return data
        graph = json.loads(data)
        change(graph)
        return json.dumps(graph).encode()

    return rewritten(source, target, one)


def assert_refused(path: Path, *words: str) -> None:
    with pytest.raises(ModelLoadError) as caught:
        import_program(path)
    said = f"{caught.value} {caught.value.hint}"
    assert all(word in said for word in words), said
    assert "\n" not in str(caught.value)


def test_layers_are_torchs_own_again_with_their_names_and_weights(saved: Path):
    found = import_program(saved)

    kinds = {name: type(layer) for name, layer in found.module.named_modules()}
    assert (kinds["stem.0"], kinds["stem.1"]) == (nn.Conv2d, nn.BatchNorm2d)
    assert (kinds["norm"], kinds["drop"], kinds["head"]) == (nn.LayerNorm, nn.Dropout, nn.Linear)
    own = Small().state_dict()
    assert {name for name in own if "num_batches" not in name} <= set(found.module.state_dict())
    assert all(torch.equal(value, own[name]) for name, value in found.module.state_dict().items())
    assert found.input_shape == SHAPE
    assert found.metadata == {"class_names": '["a", "b"]'}


def test_it_is_cut_like_the_module_itself(saved: Path):
    example = torch.randn(4, *SHAPE)

    rebuilt, own = trace(import_program(saved).module, example), trace(Small().eval(), example)

    assert [spec.shape for spec in rebuilt.tensors] == [spec.shape for spec in own.tensors]
    assert rebuilt.parameters == own.parameters


def test_statistics_move_in_training_mode(saved: Path):
    module = import_program(saved).module
    before = module.get_submodule("stem.1").running_mean.clone()

    module.train()(torch.randn(4, *SHAPE))

    assert not torch.equal(module.get_submodule("stem.1").running_mean, before)


@pytest.mark.parametrize("batch", [1, 4])
def test_a_program_for_a_fixed_batch_takes_any(tmp_path: Path, batch: int):
    model = Small().eval()

    found = import_program(save(tmp_path / "fixed.pt2", model, batch=batch))

    images = torch.randn(5, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(found.module(images), model(images), atol=1e-5, rtol=1e-4)
    assert any(f"batches of {batch}" in note for note in found.notes)


def test_decomposed_operators_become_layers(tmp_path: Path):
    free = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(Small().eval(), (torch.zeros(4, *SHAPE),), dynamic_shapes=free)
    torch.export.save(program.run_decompositions(), tmp_path / "core.pt2")

    found = import_program(tmp_path / "core.pt2")

    kinds = [type(layer) for layer in found.module.modules()]
    assert (kinds.count(nn.Conv2d), kinds.count(nn.BatchNorm2d), kinds.count(nn.LayerNorm)) == (2, 2, 1)
    assert type(found.module.get_submodule("head")) is nn.Linear


def test_a_program_in_training_mode_is_packaged_in_evaluation_mode(tmp_path: Path):
    model = Small().train()

    found = import_program(save(tmp_path / "training.pt2", model))

    images = torch.randn(3, *SHAPE)
    with torch.no_grad():
        torch.testing.assert_close(found.module(images), model.eval()(images), atol=1e-5, rtol=1e-4)
    assert any("training mode" in note and "stem.1" in note for note in found.notes)


def test_half_precision_becomes_single_with_a_note(tmp_path: Path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).half().eval()
    free = ({0: torch.export.Dim("batch", min=1, max=64)},)
    program = torch.export.export(model, (torch.zeros(4, *SHAPE).half(),), dynamic_shapes=free)
    torch.export.save(program, tmp_path / "half.pt2")

    found = import_program(tmp_path / "half.pt2")

    assert {value.dtype for value in found.module.parameters()} == {torch.float32}
    assert any("half precision" in note for note in found.notes)


def test_open_extents_need_a_shape(tmp_path: Path):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten()).eval()
    sides = (torch.export.Dim(name, min=8, max=64) for name in ("height", "width"))
    sizes = {0: torch.export.Dim("batch", max=64), **dict(zip((2, 3), sides, strict=True))}
    program = torch.export.export(model, (torch.zeros(4, 3, 20, 24),), dynamic_shapes=(sizes,))
    torch.export.save(program, tmp_path / "open.pt2")

    assert_refused(tmp_path / "open.pt2", "open", "--input-shape")
    assert import_program(tmp_path / "open.pt2", input_shape=(3, 32, 40)).input_shape == (3, 32, 40)


def test_what_is_no_such_file_is_refused(tmp_path: Path, saved: Path):
    (tmp_path / "text.pt2").write_text("no archive")
    torch.save({"weight": torch.zeros(1)}, tmp_path / "checkpoint.pt2")

    assert_refused(tmp_path / "text.pt2", "not a file of torch.export.save")
    assert_refused(tmp_path / "checkpoint.pt2", "checkpoint")
    assert_refused(tmp_path / "missing.pt2", "cannot read")
    old = rewritten(saved, tmp_path / "old.pt2", lambda _, data: data, **{"serialized_exported_program.json": b"{}"})
    assert_refused(old, "torch 2.7")


def test_another_version_of_the_format_is_named(tmp_path: Path, saved: Path):
    def change(graph: dict) -> None:
        graph["schema_version"]["major"], graph["torch_version"] = 99, "9.1"

    assert_refused(with_graph(saved, tmp_path / "later.pt2", change), "torch 9.1", torch.__version__)


@pytest.mark.parametrize(
    "target", ["torch.os.system", "torch.ops.custom.run.default", "torch.ops.aten.from_file.default"]
)
def test_an_operator_that_is_not_a_tensor_operator_is_refused(tmp_path: Path, saved: Path, target: str):
    def change(graph: dict) -> None:
        graph["graph_module"]["graph"]["nodes"][0]["target"] = target

    assert_refused(with_graph(saved, tmp_path / "custom.pt2", change), target.removeprefix("torch.ops."))


def test_a_size_that_is_code_is_not_evaluated(tmp_path: Path, saved: Path):
    marker = tmp_path / "ran"

    def change(graph: dict) -> None:
        values = graph["graph_module"]["graph"]["tensor_values"]
        sizes = next(value["sizes"] for value in values.values() if value["sizes"] and "as_expr" in value["sizes"][0])
        sizes[0]["as_expr"]["expr_str"] = f"__import__('pathlib').Path({str(marker)!r}).touch()"

    assert_refused(with_graph(saved, tmp_path / "code.pt2", change), "size")
    assert not marker.exists()


class _Touching:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_pickled_objects_are_not_unpickled(tmp_path: Path, saved: Path):
    marker, buffer = tmp_path / "ran", io.BytesIO()
    torch.save((_Touching(marker),), buffer)

    def change(name: str, data: bytes) -> bytes:
        return buffer.getvalue() if "sample_inputs" in name else data

    assert_refused(rewritten(saved, tmp_path / "pickle.pt2", change), "unpickled")
    assert not marker.exists()


def test_compiled_code_is_refused(tmp_path: Path, saved: Path):
    path = rewritten(saved, tmp_path / "so.pt2", lambda _, data: data, **{"data__aotinductor__model__x.so": b"ELF"})

    assert_refused(path, "compiled code")


class _Two(nn.Module):
    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        return images.mean((2, 3)), images.amax((2, 3))


def test_several_outputs_are_refused(tmp_path: Path):
    assert_refused(save(tmp_path / "two.pt2", _Two()), "2 outputs")
