from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional

from device_sdk.data.datasets import load_dataset
from device_sdk.data.preprocessing import prepare
from packager.inputs.model_loader import load_model
from packager.zoo import ZOO
from packager.zoo.resnet import BasicBlock
from packager.zoo.resnet_mlperf_tiny import Stage


@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_model_answers_with_one_logit_per_class(name):
    entry = ZOO[name]
    module = entry.constructor(classes=len(entry.class_names)).eval()
    image = np.zeros((*entry.input_shape[1:], entry.input_shape[0]), dtype=np.uint8)
    prepared = prepare(image, entry.preprocessing, input_shape=entry.input_shape)
    assert module(torch.from_numpy(prepared)).shape == (1, len(entry.class_names))


@pytest.mark.parametrize("name", sorted(ZOO))
def test_every_model_can_be_trained(name):
    entry = ZOO[name]
    module = entry.constructor(classes=3).train()
    module(torch.randn(2, *entry.input_shape)).square().sum().backward()
    assert all(parameter.grad is not None for parameter in module.parameters())


@pytest.mark.slow
@pytest.mark.parametrize(("name", "accuracy"), [("resnet8_mlperf_tiny", 87.28), ("resnet20_cifar10", 91.48)])
def test_published_weights_reach_their_accuracy_on_real_images(shared_data, name, accuracy):
    model = load_model(f"zoo:{name}", weights=shared_data / "pretrained" / f"{name}.safetensors")
    data = load_dataset(f"{shared_data}/cifar10/test.zip")
    assert data.class_names == model.class_names
    correct = 0
    for start in range(0, len(data), 250):
        chunk = slice(start, start + 250)
        prepared = prepare(data.images[chunk], model.preprocessing, input_shape=model.input_shape)
        with torch.no_grad():
            answers = model.module(torch.from_numpy(prepared)).argmax(1).numpy()
        correct += int((answers == data.labels[chunk]).sum())
    assert 100 * correct / len(data) == pytest.approx(accuracy, abs=0.05)


def test_option_a_takes_every_second_pixel_and_pads_new_channels_on_both_sides():
    block = BasicBlock(4, 8, stride=2).eval()
    torch.nn.init.zeros_(block.bn2.weight)  # leaves the shortcut alone
    x = torch.rand(1, 4, 6, 6)
    expected = torch.zeros(1, 8, 3, 3)
    expected[:, 2:6] = x[:, :, ::2, ::2]
    assert torch.equal(block(x), expected)


def test_mlperf_tiny_pads_below_and_to_the_right_where_it_strides():
    stage = Stage(2, 3, stride=2).eval()
    torch.nn.init.zeros_(stage.shortcut.weight)
    torch.nn.init.zeros_(stage.shortcut.bias)
    x = torch.randn(1, 2, 8, 8)
    wide = functional.pad(x, (0, 1, 0, 1))
    y = functional.conv2d(wide, stage.conv1.weight, stage.conv1.bias, stride=2)
    y = stage.bn2(stage.conv2(functional.relu(stage.bn1(y))))
    assert torch.equal(stage(x), functional.relu(y))


def test_digits_has_ten_residual_blocks_in_two_stages():
    module = ZOO["resnet_digits"].constructor(classes=10)
    assert sum(isinstance(part, BasicBlock) for part in module.modules()) == 10
    assert module.layer1(torch.zeros(1, 48, 8, 8)).shape == (1, 48, 8, 8)
    assert module.layer2(torch.zeros(1, 48, 8, 8)).shape == (1, 64, 4, 4)


def test_digits_learns_in_seconds():
    torch.manual_seed(0)
    entry = ZOO["resnet_digits"]
    module = entry.constructor(classes=10)
    train, held_back = load_dataset("digits#train"), load_dataset("digits#report")
    images = torch.from_numpy(prepare(train.images, entry.preprocessing, input_shape=entry.input_shape))
    labels = torch.from_numpy(train.labels)
    optimizer = torch.optim.AdamW(module.parameters(), lr=2e-3)
    for rate in (2e-3, 5e-4):
        optimizer.param_groups[0]["lr"] = rate
        for chosen in torch.randperm(len(train)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(module(images[chosen]), labels[chosen]).backward()
            optimizer.step()
    module.eval()
    prepared = prepare(held_back.images, entry.preprocessing, input_shape=entry.input_shape)
    with torch.no_grad():
        answers = module(torch.from_numpy(prepared)).argmax(1).numpy()
    assert (answers == held_back.labels).mean() > 0.9
