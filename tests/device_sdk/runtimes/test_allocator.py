from __future__ import annotations

import platform

import numpy as np
import pytest

from device_sdk.machine import resident_bytes
from device_sdk.runtimes.onnx_runtime import give_back_freed_memory, keep_one_heap


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc can be asked for what was freed")
def test_what_was_freed_below_something_that_is_still_used_goes_back_to_the_system():
    arrays = [np.ones(1024) for _ in range(5000)]  # 40 MB
    full = resident_bytes()
    del arrays[:-1]
    give_back_freed_memory()
    assert resident_bytes() < full - 20_000_000
    assert arrays[0].sum() == 1024


def test_it_may_be_asked_for_at_any_time():
    for _ in range(3):
        give_back_freed_memory()


def test_one_heap_may_be_asked_for_at_any_time():
    for _ in range(3):
        keep_one_heap()
