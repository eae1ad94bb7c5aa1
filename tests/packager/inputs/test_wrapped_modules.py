from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from packager.errors import ModelLoadError
from packager.inputs.model_attributes import attribute_of, unwrapped


def plain() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU())


@pytest.mark.parametrize(
    "wrap",
    [
        torch.compile,
        nn.DataParallel,
        AveragedModel,
        lambda module: torch.compile(nn.DataParallel(module)),
        lambda module: AveragedModel(torch.compile(module)),
        lambda module: nn.Sequential(torch.compile(module[0]), module[1]),
        lambda module: nn.Sequential(module[0], nn.DataParallel(torch.compile(module[1]))),
    ],
)
def test_wrappers_are_removed_at_any_depth(wrap):
    bare = unwrapped(wrap(plain()))
    assert [type(layer).__name__ for layer in bare.modules()] == ["Sequential", "Conv2d", "ReLU"]
    assert list(bare.state_dict()) == ["0.weight", "0.bias"]


def test_a_module_compiled_in_place_runs_as_it_was_written():
    module = plain()
    module.compile()
    assert unwrapped(module)._compiled_call_impl is None


def test_attributes_are_found_on_the_wrapper_and_inside():
    module = plain()
    module.class_names = ("a", "b")
    wrapper = nn.DataParallel(module)
    wrapper.input_shape = 8
    assert attribute_of(wrapper, "input_shape") == 8
    assert attribute_of(wrapper, "class_names") == ("a", "b")
    assert attribute_of(wrapper, "preprocessing") is None


@pytest.mark.parametrize("inside", [False, True])
def test_torchscript_is_refused_by_name(inside):
    scripted = torch.jit.trace(plain(), torch.zeros(1, 1, 8, 8))
    with pytest.raises(ModelLoadError, match="TorchScript") as caught:
        unwrapped(nn.Sequential(scripted) if inside else scripted)
    assert "nn.Module" in str(caught.value.hint)
