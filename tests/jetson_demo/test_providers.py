from __future__ import annotations

import pytest

from jetson_demo.providers import available_providers, open_on_first, to_try
from pathweave.errors import DataError, RuntimeFailedError, SelfTestError

CPU, CUDA, TENSORRT = "CPUExecutionProvider", "CUDAExecutionProvider", "TensorrtExecutionProvider"


@pytest.mark.parametrize(
    ("wanted", "available", "tried"),
    [
        (None, (TENSORRT, CUDA, CPU), (CUDA, CPU)),
        (None, ("AzureExecutionProvider", CPU), (CPU,)),
        ("tensorrt", (CPU,), (TENSORRT,)),
        ("CPU", (CUDA, CPU), (CPU,)),
        ("AbacusExecutionProvider", (CPU,), ("AbacusExecutionProvider",)),
    ],
)
def test_the_wanted_one_alone_else_the_preferred_ones_that_are_there(wanted, available, tried):
    assert to_try(wanted, available) == tried


def test_the_processor_is_always_there():
    assert CPU in available_providers()


def opener(works: dict[str, Exception | str]):
    def open_on(provider: str):
        if isinstance(works[provider], Exception):
            raise works[provider]
        return works[provider]

    return open_on


@pytest.mark.parametrize("error", [RuntimeFailedError("no driver"), SelfTestError("too inexact")])
def test_one_that_does_not_work_here_is_told_and_the_next_one_taken(error):
    failed = []
    found = open_on_first(
        opener({CUDA: error, CPU: "model"}), (CUDA, CPU), on_failed=lambda name, reason: failed.append((name, reason))
    )
    assert found == ("model", CPU)
    assert failed == [(CUDA, str(error))]


def test_if_the_last_one_does_not_work_either_its_error_is_the_answer():
    with pytest.raises(RuntimeFailedError, match="second"):
        open_on_first(
            opener({CUDA: RuntimeFailedError("first"), CPU: RuntimeFailedError("second")}),
            (CUDA, CPU),
            on_failed=lambda *_: None,
        )


def test_other_errors_are_not_the_providers_fault():
    with pytest.raises(DataError):
        open_on_first(opener({CUDA: DataError("x"), CPU: "model"}), (CUDA, CPU), on_failed=lambda *_: None)
