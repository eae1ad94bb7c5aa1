from __future__ import annotations

import hashlib

import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.manifest import Manifest, Metrics, Onnx, Provenance, SelfTest, Task, encode_manifest
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import CompositionError, RuntimeFailedError
from device_sdk.execution.loaded_plan import LoadedPlan
from device_sdk.runtimes import make_runtime
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, Rendition, TensorSpec
from device_sdk.supernet.plan import Edge, ExitChoice, Plan, Subnet

pytestmark = pytest.mark.slow

WEIGHT = np.arange(12, dtype=np.float32).reshape(4, 3)


@pytest.fixture(scope="module")
def engine(executorch_program):
    return make_runtime("executorch", threads=1)


@pytest.fixture(scope="module")
def programs(executorch_program, tmp_path_factory):
    """samples @ WEIGHT, doubled twice; an exit after the first doubling. One file holds all methods."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "blobs").mkdir()
    blob = hashlib.sha256(executorch_program).hexdigest()
    (folder / "blobs" / blob).write_bytes(executorch_program)

    def rendition(method, name="xnnpack", runtime="executorch"):
        return Rendition(name, runtime, blob, len(executorch_program), Golden((), 0.0), entry_point=method)

    extra = rendition("double", "fp32", "onnxruntime")
    blocks = [
        Block("o0", 0, 1, "original", 1, 1, (rendition("matmul"),)),
        Block("o1", 1, 2, "original", 1, 1, (rendition("double"), extra)),
        Block("o2", 2, 3, "original", 1, 1, (rendition("double"),)),
    ]
    manifest = Manifest(
        format_version="1.0",
        name="programs",
        version=1,
        task=Task(kind="classification", class_names=("a", "b", "c")),
        preprocessing=Preprocessing(scale=1.0, mean=(0.0,) * 3, std=(1.0,) * 3),
        cut_points=tuple(CutPoint(n, (TensorSpec(f"cut_{n}", (3 if n else 4,)),)) for n in range(4)),
        blocks=tuple(blocks),
        exits=(Exit("x2", 2, "none", 1, 1, (rendition("double"),)),),
        onnx=Onnx(ir_version=10, opset=20),
        self_test=SelfTest(seed=1, batch=1, original=Golden((), 0.0)),
        metrics=Metrics("none", 0, 0.0, (), 0.0, 0, 0),
        provenance=Provenance("programs", "made by the tests", None, None, "none", {}, {}),
    )
    (folder / "manifest.json").write_bytes(encode_manifest(manifest))
    return Bundle.open(folder)


def test_the_identity_names_version_backend_and_threads(engine):
    assert engine.identity.startswith("executorch-")
    assert engine.identity.endswith("-XnnpackBackend-1t")


@pytest.mark.parametrize("cap_bytes", [None, 3_000_000])
def test_a_plan_runs_block_by_block_and_its_exits_answer(programs, engine, cap_bytes):
    samples = np.random.default_rng(0).random((40, 4), dtype=np.float32)
    plain = LoadedPlan(programs, engine, Plan(programs.supernet.original), memory_cap_bytes=cap_bytes)
    np.testing.assert_allclose(plain.run(samples).output, 4 * samples @ WEIGHT, rtol=1e-5)
    leaving = Plan(programs.supernet.original, exits=(ExitChoice("x2", 0.0, "xnnpack"),))
    outcome = LoadedPlan(programs, engine, leaving, memory_cap_bytes=cap_bytes).run(samples)
    np.testing.assert_allclose(outcome.output, 4 * samples @ WEIGHT, rtol=1e-5)
    assert not outcome.answered_by.any()


def test_one_file_may_hold_the_methods_of_several_blocks(programs):
    stretch = programs.stretch(programs.supernet.original.edges)
    assert stretch.entry_points == ("matmul", "double", "double")
    assert len(stretch.fragments) == 3
    assert not stretch.branch


def test_blocks_of_different_runtimes_do_not_run_as_one(programs, engine):
    mixed = Subnet((Edge("o0", "xnnpack"), Edge("o1"), Edge("o2", "xnnpack")))
    with pytest.raises(CompositionError, match="executorch and onnxruntime do not run as one") as caught:
        LoadedPlan(programs, engine, Plan(mixed))
    assert caught.value.hint


def test_a_runtime_refuses_the_blocks_of_another(programs, runtime):
    with pytest.raises(RuntimeFailedError, match="cannot run blocks for executorch"):
        LoadedPlan(programs, runtime, Plan(programs.supernet.original))


def test_a_process_has_one_number_of_threads(programs, engine):
    engine.load(programs.stretch(programs.supernet.original.edges))
    with pytest.raises(RuntimeFailedError, match="runs with 1 threads in this process, not with 2"):
        make_runtime("executorch", threads=2).load(programs.stretch(programs.supernet.original.edges))
