"""Compiling in a child process: Qualcomm's compiler where it is installed, and processes that crash and hang."""

from __future__ import annotations

import sys
from importlib import metadata

import numpy as np
import onnxruntime
import pytest

from device_sdk.supernet.blocks import CompiledFor, RefusedNodes
from packager.errors import NotDelegatedError
from packager.npu.chips import CHIPS
from packager.npu.compiler import Compiler, compiler_version
from packager.npu.emulation import emulated
from tests.packager.npu.models import model_of

pytestmark = pytest.mark.usefixtures("qnn")

V73, NO_HALF_PRECISION = CHIPS["v73"], CHIPS["qcs6490"]
HANGS = "import sys, time\nfor line in sys.stdin: time.sleep(3600)"
# Aborts on every second model, as a fault in a library does.
ABORTS = """
import json, os, pathlib, sys
for line in sys.stdin:
    if b"crash" in pathlib.Path(json.loads(line)["model"]).read_bytes():
        os.abort()
    print(json.dumps({"nodes": 3, "refused": [], "seconds": 0.5, "context_bytes": 7}), flush=True)
"""


def command(program: str) -> tuple[str, ...]:
    return (sys.executable, "-c", program)


@pytest.fixture(scope="module")
def compiler():
    with Compiler() as made:
        yield made


def test_the_record_names_chip_provider_and_version(compiler):
    outcome = compiler.compiled(model_of("Relu"), V73)
    version = f"onnxruntime-qnn {metadata.version('onnxruntime-qnn')}"
    assert compiler_version() == version
    assert not outcome.failure
    assert outcome.record.nodes >= 2
    nodes = outcome.record.nodes
    assert outcome.record == CompiledFor("v73", "QNNExecutionProvider", version, nodes)
    assert outcome.record.share == 1.0
    assert outcome.context_bytes > 0


def test_a_node_that_the_npu_refuses_is_recorded_with_operator_and_reason(compiler):
    outcome = compiler.compiled(model_of("Relu", "Acos"), V73)
    assert outcome.record.refused == (RefusedNodes("Acos", 1, "Operators of type `Acos` are not supported by QNN EP."),)
    assert outcome.record.share == outcome.record.nodes / (outcome.record.nodes + 1) > 0
    assert not outcome.failure


def test_an_operator_that_is_taken_only_once_it_is_expanded_is_no_refusal(compiler):
    outcome = compiler.compiled(model_of("Relu", "Mish"), V73)
    assert (outcome.record.share, outcome.failure) == (1.0, "")


def test_a_model_that_is_refused_as_a_whole_fails_with_the_reason(compiler):
    outcome = compiler.compiled(model_of("Relu"), NO_HALF_PRECISION)
    assert outcome.failure
    assert outcome.record.nodes == 0
    assert "Conv" in {one.operator for one in outcome.record.refused}
    with pytest.raises(NotDelegatedError, match="qcs6490 does not run the model"):
        emulated(compiler, model_of("Relu"), np.zeros((1, 8, 4, 4), np.float32), chip=NO_HALF_PRECISION)


def test_the_emulator_answers_as_the_processor_but_for_half_precision(compiler):
    inputs = np.random.default_rng(0).standard_normal((3, 8, 4, 4)).astype(np.float32)
    model = model_of("Relu")
    expected = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"]).run(None, {"cut_0": inputs})[0]
    found = emulated(compiler, model, inputs, chip=V73)
    np.testing.assert_allclose(found, expected, atol=0.01 * float(np.abs(expected).max()))
    assert not np.array_equal(found, expected)


def test_bytes_that_are_no_model_fail_alone(compiler):
    assert compiler.compiled(b"no model", V73).failure
    assert not compiler.compiled(model_of("Relu"), V73).failure


def test_a_crash_is_the_failure_of_one_model_and_the_next_is_compiled():
    with Compiler(command=command(ABORTS)) as crashing:
        found = [crashing.compiled(data, V73) for data in (b"fine", b"to crash", b"fine")]
    assert [one.failure for one in found] == ["", "the compiler crashed (SIGABRT)", ""]
    assert [one.record.nodes for one in found] == [3, 0, 3]


def test_a_compiler_that_cannot_start_fails_every_model():
    with Compiler(command=command("raise SystemExit(3)")) as broken:
        assert broken.compiled(b"one", V73).failure == "the compiler crashed (status 3)"
        assert broken.compiled(b"two", V73).failure == "the compiler crashed (status 3)"


def test_a_hang_ends_at_the_deadline():
    with Compiler(command=command(HANGS), deadline_s=0.2) as hanging:
        assert hanging.compiled(b"one", V73).failure == "the compiler took more than 0.2 s"
