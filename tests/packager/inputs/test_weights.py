from __future__ import annotations

import pickle
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from packager.errors import WeightsError
from packager.inputs.weights import load_weights, require_finite


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3)
        self.bn = nn.BatchNorm2d(2)


class NotATensor:
    """Something that only an unrestricted unpickler would build."""


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        name: torch.rand(value.shape, generator=generator)
        for name, value in Small().state_dict().items()
        if not name.endswith("num_batches_tracked")
    }


def assert_loads(path: Path, state: dict[str, torch.Tensor]) -> None:
    module = Small()
    load_weights(module, path)
    loaded = module.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in state.items())


def refusal(path: Path) -> WeightsError:
    module = Small()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    with pytest.raises(WeightsError) as caught:
        load_weights(module, path)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    return caught.value


def test_safetensors_are_loaded(tmp_path, state):
    save_file(state, tmp_path / "w.safetensors")
    assert_loads(tmp_path / "w.safetensors", state)


@pytest.mark.parametrize("suffix", [".pth", ".pt"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: OrderedDict(state),
        lambda state: {"state_dict": state, "epoch": 3},
        lambda state: {f"module.{name}": value for name, value in state.items()},
        lambda state: {"state_dict": {f"module.{name}": value for name, value in state.items()}},
        lambda state: {name: value.double() for name, value in state.items()},
        lambda state: state | {"bn.num_batches_tracked": torch.tensor(7)},
        lambda state: state | {"aux1.fc1.weight": torch.zeros(1)},
        lambda state: {f"_orig_mod.{name}": value for name, value in state.items()},
        lambda state: {f"module._orig_mod.{name}": value for name, value in state.items()},
        lambda state: {name.replace(".", "._orig_mod."): value for name, value in state.items()},
        lambda state: {"n_averaged": torch.tensor(3)} | {f"module.{name}": value for name, value in state.items()},
        lambda state: {"epoch": 3, "model": state, "optimizer": {"state": {0: {"exp_avg": torch.zeros(9)}}}},
        lambda state: {"model_state_dict": state, "loss": 0.1, "scaler": {"scale": torch.ones(1)}},
        lambda state: {"model": {"state_dict": state}},
        lambda state: {"state_dict": {f"model.{name}": value for name, value in state.items()}, "epoch": 1},
        lambda state: {
            "state_dict": {f"net.backbone.{name}": value for name, value in state.items()} | {"loss.w": torch.ones(2)}
        },
        lambda state: {"model": state, "model_ema": {name: value.clone() for name, value in state.items()}},
        lambda state: {"model": {"other.weight": torch.ones(3)}, "ema": state},
    ],
    ids=[
        *("plain", "ordered", "wrapped", "parallel", "both", "double", "counter", "auxiliary head", "compiled"),
        *("compiled and parallel", "compiled inside", "averaged", "tutorial", "with a scaler", "two keys", "lightning"),
        *("beside a loss", "equal average", "another model's weights beside"),
    ],
)
def test_state_dicts_are_loaded_however_they_are_wrapped(tmp_path, state, suffix, wrap):
    path = tmp_path / f"w{suffix}"
    torch.save(wrap(state), path)
    assert_loads(path, state)


def test_old_names_of_densenet_files_are_understood(tmp_path):
    module = nn.ModuleDict({"denselayer1": nn.ModuleDict({"norm1": nn.BatchNorm2d(2)})})
    torch.save(
        {
            f"denselayer1.norm.1.{name}": torch.full((2,), 3.0)
            for name in ("weight", "bias", "running_mean", "running_var")
        },
        tmp_path / "w.pth",
    )
    load_weights(module, tmp_path / "w.pth")
    assert module["denselayer1"]["norm1"].weight.tolist() == [3, 3]


def test_a_missing_file_is_named(tmp_path):
    assert "there is no weights file" in str(refusal(tmp_path / "nowhere.safetensors"))


def test_a_folder_is_no_weights_file(tmp_path):
    (tmp_path / "w.pth").mkdir()
    assert "there is no weights file" in str(refusal(tmp_path / "w.pth"))


def test_an_unknown_ending_names_the_known_ones(tmp_path):
    (tmp_path / "w.h5").write_bytes(b"x")
    assert ".safetensors, .pth, .pt" in str(refusal(tmp_path / "w.h5").hint)


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("damage", ["half", "header", "empty", "text"])
def test_damaged_files_are_refused_in_one_line(tmp_path, state, suffix, damage):
    path = tmp_path / f"w{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    whole = path.read_bytes()
    path.write_bytes({"half": whole[: len(whole) // 2], "header": whole[:6], "empty": b"", "text": b"hello"}[damage])
    assert "cannot be read" in str(refusal(path))


def test_pickled_objects_are_refused(tmp_path, state):
    torch.save(state | {"model": NotATensor()}, tmp_path / "w.pth")
    assert "Python objects besides tensors" in str(refusal(tmp_path / "w.pth"))


def test_a_plain_pickle_is_refused_without_running_it(tmp_path):
    class Bomb:
        def __reduce__(self):
            return (Path.touch, (tmp_path / "exploded",))

    (tmp_path / "w.pth").write_bytes(pickle.dumps(Bomb(), protocol=2))
    refusal(tmp_path / "w.pth")
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("content", [[1, 2], {}, torch.zeros(3)])
def test_a_file_without_a_state_dict_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "w.pth")
    assert "no state dict" in str(refusal(tmp_path / "w.pth"))


def test_entries_that_are_no_tensors_are_named(tmp_path, state):
    torch.save(state | {"epoch": 3}, tmp_path / "w.pth")
    assert "epoch" in str(refusal(tmp_path / "w.pth"))


def test_wrong_keys_are_counted_and_the_first_three_named(tmp_path, state):
    del state["conv.weight"]
    save_file(state | {f"new{number}": torch.zeros(1) for number in range(4)}, tmp_path / "w.safetensors")
    message = str(refusal(tmp_path / "w.safetensors"))
    assert "1 keys are missing (conv.weight)" in message
    assert "4 keys are unexpected (new0, new1, new2, …)" in message


def test_more_than_three_missing_keys_are_counted(tmp_path, state):
    save_file({"bn.bias": state["bn.bias"]}, tmp_path / "w.safetensors")
    assert "5 keys are missing (conv.weight, conv.bias, bn.weight, …)" in str(refusal(tmp_path / "w.safetensors"))


def test_wrong_shapes_say_what_was_expected(tmp_path, state):
    save_file(state | {"conv.bias": torch.zeros(5)}, tmp_path / "w.safetensors")
    message = str(refusal(tmp_path / "w.safetensors"))
    assert "1 tensors have other shapes (conv.bias is [5] instead of [2])" in message


def test_what_was_removed_is_named(tmp_path, state):
    wrapped = {"state_dict": {f"model._orig_mod.{name}": value for name, value in state.items()}, "epoch": 1}
    torch.save(wrapped, tmp_path / "w.pth")
    assert load_weights(Small(), tmp_path / "w.pth") == ("key 'state_dict'", "prefix '_orig_mod.'", "prefix 'model.'")


def test_two_state_dicts_that_fit_are_refused_by_name(tmp_path, state):
    torch.save({"model": state, "ema": {name: value + 1 for name, value in state.items()}}, tmp_path / "w.pth")
    error = refusal(tmp_path / "w.pth")
    assert "key 'model' and key 'ema'" in str(error)
    assert "save one of them alone" in str(error.hint)


def test_two_models_in_one_state_dict_are_not_guessed(tmp_path, state):
    both = {f"{owner}.{name}": value for owner in ("student", "teacher") for name, value in state.items()}
    torch.save(both, tmp_path / "w.pth")
    assert "keys are missing" in str(refusal(tmp_path / "w.pth"))


def test_a_prefix_of_the_models_own_names_is_named(tmp_path, state):
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError) as caught:
        load_weights(nn.ModuleDict({"wrapped": Small()}), tmp_path / "w.safetensors")
    assert "'wrapped.'" in str(caught.value.hint)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("name", ["conv.weight", "bn.running_var"])
def test_weights_that_are_not_numbers_are_named(name, value):
    module = Small()
    module.state_dict()[name].view(-1)[0] = value
    with pytest.raises(WeightsError, match=name.replace(".", r"\.")):
        require_finite(module)


def test_masks_of_infinity_in_buffers_are_weights_like_others():
    module = Small()
    module.register_buffer("mask", torch.full((3,), float("-inf")))
    require_finite(module)
