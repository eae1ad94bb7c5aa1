"""Memory that exits keep resident in ONNX Runtime, measured in a process of its own."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence

import numpy as np

from device_sdk.fragments.composition import Stretch
from device_sdk.machine import resident_bytes
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.onnx_runtime import give_back_freed_memory


def resident_of_sessions(stretches: Sequence[Stretch]) -> int:
    """Bytes that one loaded session per model adds to a new process; each has run once."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measured, (list(stretches),))


def _measured(stretches: list[Stretch]) -> int:
    runtime = OnnxRuntime(threads=1)
    _run(runtime, stretches[0])  # what the library itself takes is not counted
    before = _resident()
    loaded = [_run(runtime, stretch) for stretch in stretches]
    after = _resident()
    assert len(loaded) == len(stretches)
    return after - before


def _run(runtime: OnnxRuntime, stretch: Stretch) -> object:
    session = runtime.load(stretch)
    session.run([np.zeros((1, *spec.shape), np.float32) for spec in stretch.inputs])
    return session


def _resident() -> int:
    give_back_freed_memory()
    found = resident_bytes()
    assert found is not None, "this system does not tell the resident memory"
    return found
