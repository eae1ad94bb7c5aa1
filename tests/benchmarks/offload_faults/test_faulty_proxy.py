from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.offload_faults.faulty_proxy import FaultyProxy, faulty_proxy
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.offload.asking import AskClient
from device_sdk.offload.remote_calls import CircuitBreaker
from device_sdk.offload.remote_model import RemoteModel

ROOT = Path(__file__).parents[3]
IMAGES = np.random.default_rng(0).integers(0, 256, (2, 4, 5, 3), dtype=np.uint8)
TENSORS = np.zeros((2, 3, 4, 5), np.float32)


@pytest.fixture(scope="module")
def upstream() -> Iterator[str]:
    """A server whose logits are the mean of each channel."""
    process = subprocess.Popen(
        [sys.executable, str(ROOT / "tests/device_sdk/offload/faulty_server.py"), "0"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.fixture
def proxy(upstream) -> Iterator[FaultyProxy]:
    with faulty_proxy(upstream) as made:
        yield made


def ask(proxy: FaultyProxy, *, timeout_s: float = 5.0):
    client = AskClient(
        RemoteModel(server=proxy.url, model="bright:images", privacy="inputs", timeout_s=timeout_s),
        class_names=["red", "green", "blue"],
        input_shape=(3, 4, 5),
        preprocessing=Preprocessing(scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3),
        breaker=CircuitBreaker(clock=time.monotonic, failures=100),
    )
    reply = client.answer(TENSORS, IMAGES)
    client.close()
    return reply


def test_when_well_it_passes_everything_on(proxy):
    np.testing.assert_allclose(ask(proxy).output, IMAGES.mean(axis=(1, 2)), rtol=1e-5)


@pytest.mark.parametrize("turn", range(6))
def test_no_garbage_is_taken_for_an_answer(proxy, turn):
    assert ask(proxy).output is not None  # an earlier reply, which one kind of garbage repeats
    proxy.mode, proxy.turns = "garbage", itertools.count(turn)
    reply = ask(proxy)
    assert reply.output is None
    assert reply.failure


def test_a_slow_one_answers_too_late(proxy):
    proxy.mode = "slow"
    assert ask(proxy, timeout_s=0.3).output is None


def test_without_a_server_behind_it_there_is_no_answer(proxy):
    proxy.upstream = "http://127.0.0.1:9"
    assert ask(proxy).output is None
