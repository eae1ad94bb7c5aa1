"""What an examination says of models that can be adapted, and of those that cannot."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from device_sdk.data.preprocessing import Preprocessing
from packager.doctor.examination import Examination, examine
from packager.doctor.verdicts import Verdict
from packager.errors import TraceError
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.model_loader import load_model
from packager.inputs.two_stage import TwoStage

CAPABILITIES = ["cut", "skip", "merge", "shrink", "quantise", "run smaller", "exit", "split", "package"]


class Residual(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, 1, 1) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.second(torch.relu(self.first(x))))


class Pooled(nn.Module):
    """Runs at any size: the head averages."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 7, 8, 3)
        self.blocks = nn.Sequential(*(Residual(8) for _ in range(4)))
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).mean((2, 3)))


class Fixed(Pooled):
    """Takes its own size alone: the head has a weight for every position."""

    def __init__(self, side: int) -> None:
        super().__init__()
        self.head = nn.Linear(8 * (side // 8) ** 2, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(torch.relu(self.stem(x))).flatten(1))


class StemAndHead(nn.Module):
    """Two layers with nothing between them."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.head = nn.Conv2d(3, 8, 7, 8, 3), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.stem(x).mean((2, 3)))


class Features(Pooled):
    """A backbone that gives two features."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        early = self.blocks[:2](torch.relu(self.stem(x)))
        return early, self.blocks[2:](early)


class Map(nn.Module):
    """A head that answers a map."""

    def forward(self, early: Tensor, late: Tensor) -> Tensor:
        return (early + late)[:, :5]


class Streams(nn.Module):
    """A fine and a coarse stream that meet in the head: everywhere between two tensors are live."""

    def __init__(self) -> None:
        super().__init__()
        self.fine, self.coarse = nn.Conv2d(3, 8, 7, 8, 3), nn.Conv2d(3, 12, 7, 16, 3)
        self.fines, self.coarses = (nn.ModuleList(Residual(n) for _ in range(5)) for n in (8, 12))
        self.head = nn.Linear(20, 5)

    def forward(self, x: Tensor) -> Tensor:
        fine, coarse = self.fine(x), self.coarse(x)
        for one, other in zip(self.fines, self.coarses, strict=True):
            fine, coarse = one(fine), other(coarse)
        return self.head(torch.cat([fine.mean((2, 3)), coarse.mean((2, 3))], 1))


class DataDependent(Pooled):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if x.sum() > 0 else x.mean((2, 3))


@pytest.fixture
def loaded() -> Callable[..., LoadedModel]:
    def build(module: Callable[[], nn.Module], *, side: int = 160, names: tuple[str, ...] | None = None) -> LoadedModel:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = module().eval()
        pixels = Preprocessing(scale=1 / 255, mean=(0.5,) * 3, std=(0.5,) * 3)
        return LoadedModel(model, (3, side, side), pixels, names, "tiny", None, "tests")

    return build


def _said(found: Examination, capability: str) -> Verdict:
    (verdict,) = [one for one in found.verdicts if one.capability == capability]
    return verdict


def test_a_residual_model_has_every_capability(loaded):
    found = examine(loaded(Pooled), memory_bytes=10**12)
    assert [one.capability for one in found.verdicts] == CAPABILITIES
    assert all(one.possible for one in found.verdicts)
    assert [block["id"] for block in found.blocks] == [f"o{index}" for index in range(6)]
    assert found.added["merged"] == ("m1-3", "m1-4", "m2-4", "m2-5", "m3-5")
    assert found.added["identity"] == ("i1-2", "i2-3", "i3-4", "i4-5")
    assert {block.split("-")[0] for block in found.added["shrunk"]} == {"s1", "s2", "s3", "s4"}
    assert found.renditions == ("fp32", "int8", "fp16", "xnnpack", "htp", "w2", "w4", "w6", "w8")
    assert found.architecture_count > 2
    assert 0 < found.estimate["bundle_mb"] < found.estimate_int8["bundle_mb"]
    assert "architectures" in found.conclusion


def test_it_changes_no_weight_and_no_mode(loaded):
    model = loaded(Pooled)
    before = {name: value.clone() for name, value in model.module.state_dict().items()}
    examine(model)
    assert not model.module.training
    assert all(torch.equal(value, before[name]) for name, value in model.module.state_dict().items())


def test_without_images_it_says_which_smaller_inputs_run_but_not_what_they_cost(loaded):
    found = examine(loaded(Pooled))
    assert [(one.size, one.error) for one in found.input_sizes] == [
        *(((side, side), None) for side in (144, 128, 112, 96))
    ]
    assert _said(found, "run smaller").says == "144, 128, 112, 96; their errors were not measured: needs --data"


def test_images_tell_what_smaller_inputs_cost(loaded):
    smooth = torch.rand(16, 3, 5, 5, generator=torch.Generator().manual_seed(1)).repeat_interleave(32, 2)
    found = examine(loaded(Pooled), images=smooth.repeat_interleave(32, 3), image_count=16)
    assert found.input_sizes
    assert all(0 <= one.error <= 1 for one in found.input_sizes)
    assert f"(error {found.input_sizes[0].error:.3f})" in _said(found, "run smaller").says


def test_a_model_that_fixes_its_input_size_says_why_it_runs_at_no_other(loaded):
    found = examine(loaded(lambda: Fixed(160)))
    verdict = _said(found, "run smaller")
    assert not verdict.possible
    assert verdict.says.startswith("no input of 144x144: ")
    assert "no input of 96x96" in " ".join(found.notes)


def test_a_small_input_has_no_smaller_one(loaded):
    assert "below 96 pixels" in _said(examine(loaded(Pooled, side=64)), "run smaller").says


def test_a_model_whose_every_block_has_to_stay_is_said_to_be_one(loaded):
    found = examine(loaded(StemAndHead))
    assert not any(_said(found, capability).possible for capability in ("skip", "merge", "shrink"))
    assert "nothing to merge" in _said(found, "merge").says
    assert found.architecture_count == 1
    assert found.conclusion.startswith("every block has to stay: it packages with int8")
    assert "smaller inputs" in found.conclusion


def test_splits_are_where_less_travels_than_the_input(loaded):
    found = examine(loaded(Pooled))
    first, *inner, last = found.cut_points
    assert all(one.split and one.packet_nbytes < first.packet_nbytes for one in inner)
    assert not first.split
    assert not last.split


def test_two_stages_have_int8_and_keep_their_taps(loaded):
    found = examine(loaded(lambda: TwoStage(Features(), Map())))
    assert _said(found, "quantise").possible
    assert {"fp32", "int8"} <= set(found.renditions)
    assert "xnnpack" not in found.renditions
    assert found.estimate_int8 is not None
    assert [one.index for one in found.cut_points if one.mandatory] == [3]
    assert "not a classifier" in _said(found, "exit").says
    assert found.conclusion.startswith("pathweave package refuses it as a classifier: it has 5×20×20 outputs")
    assert "--task segmentation" in found.conclusion


def test_parallel_streams_are_told_what_int8_would_cost_them(loaded):
    found = examine(loaded(Streams))
    assert "with several tensors" in _said(found, "cut").says
    assert "the model is then cut into 2 blocks" in _said(found, "quantise").says
    assert any(len(one.shapes) == 2 for one in found.cut_points)
    assert found.estimate_int8 is None


def test_a_list_of_other_classes_is_told(loaded):
    found = examine(loaded(Pooled, names=("cat", "dog")))
    assert not _said(found, "classify").possible
    assert "5 outputs, its list has 2 classes" in found.conclusion


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        ({"budget_minutes": 0.001}, "0.001 minutes are too few"),
        ({"memory_bytes": 10**7}, "0.01 GB of memory are too few"),
    ],
)
def test_limits_below_the_least_are_told_with_the_least(loaded, limits, words):
    verdict = _said(examine(loaded(Pooled), **limits), "package")
    assert not verdict.possible
    assert words in verdict.says
    assert "at least" in verdict.says


def test_minutes_that_are_left_for_training_are_told(loaded):
    verdict = _said(examine(loaded(Pooled), budget_minutes=30, memory_bytes=10**12), "package")
    assert verdict.possible
    assert "of 30 minutes are left for training" in verdict.says


def test_a_model_that_cannot_be_traced_is_refused(loaded):
    with pytest.raises(TraceError, match="cannot be traced"):
        examine(loaded(DataDependent))


# The command


def test_the_command_prints_one_json_object(pathweave):
    done = pathweave("package", "--check", "--model", "users_models:small", "--data", "digits#search", "--json")
    assert done.status == 0
    result = done.result
    assert result["model"] == "small"
    named = [one["capability"] for one in result["verdicts"]]
    assert named == [*CAPABILITIES[:5], "run on an NPU", *CAPABILITIES[5:]]
    assert result["architecture_count"].isdigit()
    assert result["estimate"]["least_minutes"] > 0


def test_the_command_shows_a_person_a_table_and_a_conclusion(pathweave):
    shown = pathweave("package", "--check", "--model", "users_models:small").out
    assert "small: 1×8×8 in, 10 out" in shown
    assert all(capability in shown for capability in CAPABILITIES)
    assert "o0" in shown
    assert "architectures" in shown.splitlines()[-1] + shown.splitlines()[-2]


@pytest.mark.parametrize(
    ("arguments", "status", "error", "words"),
    [
        (
            (
                "--model",
                "zoo:resnet_digit",
            ),
            1,
            "ModelLoadError",
            "'resnet_digit'",
        ),
        (
            (
                "--model",
                "users_models:data_dependent",
            ),
            1,
            "ModelLoadError",
            "differs with the other images of a batch",
        ),
        (
            (
                "--model",
                "users_models:one_layer",
            ),
            1,
            "TraceError",
            "no cut point",
        ),
        (("--model", "users_models:silent", "--input-shape", "1x8x8"), 1, "ModelLoadError", "is unknown"),
        (("--model", "zoo:resnet_digits", "--weights", "nowhere.safetensors"), 1, "WeightsError", "no weights file"),
        (("--model", "zoo:resnet_digits", "--data", "nowhere"), 1, "DataError", "there is no data at"),
        (("--model", "users_models:five_answers", "--data", "digits#search"), 1, "DataError", "5 outputs"),
        (("--model", "zoo:resnet_digits", "--input-shape", "8x8"), 2, "UsageError", "channels x height x width"),
        (("--model", "zoo:resnet_digits", "--memory-gb", "0"), 2, "UsageError", "not a limit for memory"),
        ((), 2, "UsageError", "--model"),
    ],
)
def test_what_cannot_be_examined_is_one_line(pathweave, arguments, status, error, words):
    refused = pathweave("package", "--check", *arguments, "--json")
    assert refused.status == status
    lines = refused.err.splitlines()
    assert lines[0].startswith("error: ")
    assert len(lines) <= 2
    told = json.loads(refused.out)["error"]
    assert told["type"] == error
    assert words in told["message"]


def test_weights_of_another_model_are_refused(pathweave, tmp_path):
    state = load_model("zoo:resnet_digits").module.state_dict()
    save_file({f"{name}.other": value for name, value in state.items()}, tmp_path / "w.safetensors")
    refused = pathweave(
        "package", "--check", "--model", "zoo:resnet_digits", "--weights", tmp_path / "w.safetensors", "--json"
    )
    assert (refused.status, refused.result["error"]["type"]) == (1, "WeightsError")
