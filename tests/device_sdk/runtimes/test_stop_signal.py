from __future__ import annotations

import threading
import time
from itertools import pairwise

import numpy as np

from device_sdk.runtimes.port import StopSignal
from device_sdk.supernet.blocks import TensorSpec


def test_setting_it_ends_what_runs_now():
    stop, ended = StopSignal(), []
    with stop.ending_by(lambda: ended.append("first")):
        pass
    with stop.ending_by(lambda: ended.append("second")):
        assert not stop.is_set
        stop.set()
    assert ended == ["second"]


def test_what_begins_later_ends_at_once():
    stop, ended = StopSignal(), []
    stop.set()
    with stop.ending_by(lambda: ended.append("late")):
        assert ended == ["late"]


def test_onnx_runtime_ends_a_long_run_between_two_operators(onnx_stretch, runtime):
    size, layers = 256, 200
    weight = np.eye(size, dtype=np.float32)
    names = ["cut_0", *(f"a/{number}" for number in range(layers - 1)), "cut_1"]
    nodes = [("MatMul", [before, "a/w"], [after]) for before, after in pairwise(names)]
    spec = tuple((TensorSpec(name, (size,)),) for name in ("cut_0", "cut_1"))
    loaded = runtime.load(onnx_stretch(nodes, [("a/w", weight)], inputs=spec[0], outputs=spec[1]))
    samples = np.ones((512, size), np.float32)
    began = time.perf_counter()
    loaded.run([samples])
    whole_s = time.perf_counter() - began
    stop, found = StopSignal(), []
    thread = threading.Thread(target=lambda: found.append(loaded.run_until([samples], stop)))
    thread.start()
    time.sleep(whole_s / 10)
    stop.set()
    thread.join()
    assert found == [None]  # a run to the end would have an answer
