"""The single model under a limit of memory that the kernel enforces."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from benchmarks.elastic.single import answers_within

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux limits the memory of a process so")

CHECKOUT = Path(__file__).parents[3]
BUNDLE = CHECKOUT / "tests" / "contract" / "bundle"
SCRIPT = """
import sys
from benchmarks.elastic.single import _limit_data

_limit_data(30_000_000)
held = bytearray(b"x") * int(sys.argv[1])
"""


@pytest.fixture
def inputs(tmp_path) -> Path:
    np.save(tmp_path / "inputs.npy", np.zeros((1, 3, 2, 2), np.float32))
    return tmp_path / "inputs.npy"


def test_a_model_answers_within_more_than_it_needs(inputs):
    assert answers_within(BUNDLE, inputs, 50_000_000, beside=None)


@pytest.mark.parametrize(("size_bytes", "fits"), [(20_000_000, True), (40_000_000, False)])
def test_memory_beyond_the_limit_is_refused(size_bytes, fits):
    command = [sys.executable, "-c", SCRIPT, str(size_bytes)]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) == fits
    assert ("MemoryError" in done.stderr) != fits


def test_a_failure_that_is_not_one_of_memory_is_not_taken_for_one(inputs, tmp_path):
    with pytest.raises(RuntimeError, match="for another reason"):
        answers_within(tmp_path / "no bundle", inputs, 50_000_000, beside=None)
