from __future__ import annotations

from pathlib import Path

import pytest
import torch

from benchmarks.runner.run import BenchOptions
from benchmarks.support.lite import missing_weights, renamed_in_order
from device_sdk.progress import SilentProgress


def options(tmp_path: Path) -> BenchOptions:
    return BenchOptions(quick=True, data_folder=tmp_path, work_folder=tmp_path, progress=SilentProgress())


def test_weights_that_cannot_be_had_are_missing_with_what_would_help(tmp_path: Path) -> None:
    reason = missing_weights(options(tmp_path), 9)
    assert reason is not None
    assert "efficientnet-lite9-pytorch-model" in reason
    assert "PATHWEAVE_EFFICIENTNET_LITE9" in reason


def test_weights_in_the_data_folder_are_found(tmp_path: Path) -> None:
    (tmp_path / "pretrained").mkdir()
    (tmp_path / "pretrained" / "efficientnet_lite9_imagenet.safetensors").touch()
    assert missing_weights(options(tmp_path), 9) is None


def test_layers_in_the_same_order_are_renamed() -> None:
    state = {"_conv.weight": torch.ones(2, 3), "_bn.bias": torch.zeros(2)}
    expected = {"conv.weight": torch.zeros(2, 3), "bn.bias": torch.zeros(2)}
    found = renamed_in_order(state, expected)
    assert list(found) == ["conv.weight", "bn.bias"]
    assert torch.equal(found["conv.weight"], torch.ones(2, 3))
    with pytest.raises(ValueError, match="order"):
        renamed_in_order(state, {"bn.bias": torch.zeros(2), "conv.weight": torch.zeros(2, 3)})
