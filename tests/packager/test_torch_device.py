from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from device_sdk.errors import UsageError
from packager.torch_device import _place, on_device, resolve_device, resolve_precision


class Placed(nn.Module):
    """Makes a tensor of its own, on the device that tracing wrote down."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.arange(4, device=torch.device("cpu")).view(1, 4, 1, 1)


def test_auto_takes_what_is_there():
    found = resolve_device("auto")
    assert found.type == (
        "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    )
    assert resolve_device("cpu") == resolve_device("cpu", local_rank=3) == torch.device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one here")
def test_a_device_that_is_not_there_is_wrong_usage():
    with pytest.raises(UsageError, match="no device cuda") as caught:
        resolve_device("cuda")
    assert "cpu" in str(caught.value.hint)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")
def test_every_process_of_a_machine_has_a_cuda_device_of_its_own():
    assert resolve_device("cuda", local_rank=0) == torch.device("cuda", 0)
    with pytest.raises(UsageError, match="has no CUDA device") as caught:
        resolve_device("auto", local_rank=torch.cuda.device_count())
    assert "one process per device" in str(caught.value.hint)


def test_named_precisions_do_not_ask_the_device():
    assert resolve_precision("float32") == torch.float32
    assert resolve_precision("bfloat16", torch.device("cuda")) == torch.bfloat16
    assert resolve_precision("auto") in (torch.float32, torch.bfloat16)
    assert resolve_precision("auto", torch.device("mps")) == torch.float32


def test_weights_and_the_tensors_that_a_traced_block_makes_move_together():
    module = torch.fx.symbolic_trace(Placed())

    def placed() -> set[str]:
        made = {str(node.kwargs["device"]) for node in module.graph.nodes if "device" in node.kwargs}
        return made | {str(parameter.device) for parameter in module.parameters()}

    before = module(torch.ones(1, 3, 5, 5))
    with on_device([module], torch.device("cpu")):
        assert module.layer.weight.is_contiguous(memory_format=torch.channels_last)
        assert torch.allclose(module(torch.ones(1, 3, 5, 5)), before, atol=1e-6)
    assert placed() == {"cpu"}
    _place(module, torch.device("meta"))
    assert placed() == {"meta"}
    assert module(torch.ones(1, 3, 5, 5, device="meta")).device.type == "meta"
