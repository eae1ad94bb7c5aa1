"""Model repositories, read by Triton's own schema and run by the runtime that Triton runs them with."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from google.protobuf import text_format

from device_sdk.errors import UsageError
from device_sdk.offload.remote_model import path_model
from device_sdk.runtimes import OnnxRuntime
from device_sdk.supernet.paths import enumerate_subnets
from server.inference.models import ModelCache
from server.inference.offers import offered, offers
from server.inference.triton import Batching, write_repository


def config_type():
    """Triton's message, from its client without gRPC, which the message does not need."""
    found = importlib.util.find_spec("tritonclient")
    if found is None or found.origin is None:
        pytest.skip("needs the extra: pip install 'pathweave[dev]'")
    path = Path(found.origin).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.ModelConfig


def read_config(folder):
    return text_format.Parse((folder / "config.pbtxt").read_text(), config_type()())


def test_the_configuration_keeps_tritons_schema_and_describes_the_model(tiny_bundle, tmp_path):
    write_repository(tiny_bundle, tmp_path, batching=Batching(16, 1.5))
    config = read_config(tmp_path / "tiny")
    assert (config.name, config.platform, config.max_batch_size) == ("tiny", "onnxruntime_onnx", 16)
    assert config.dynamic_batching.max_queue_delay_microseconds == 1500
    [wanted], [output] = config.input, config.output
    assert (wanted.name, list(wanted.dims), output.name, list(output.dims)) == ("input", [3, 20, 20], "logits", [3])
    assert type(config).DESCRIPTOR.fields_by_name["input"].message_type is not None
    assert (tmp_path / "tiny" / output.label_filename).read_text().split() == ["blue", "green", "red"]


def test_the_model_answers_what_the_server_answers(tiny_bundle, tmp_path):
    [full] = [one for one in offers(tiny_bundle) if one.takes_tensors]
    path = path_model("tiny", next(iter(enumerate_subnets(tiny_bundle.supernet, limit=100))))
    found = write_repository(tiny_bundle, tmp_path, paths=["tiny", path])
    assert [one.name for one in found] == ["tiny", path]
    samples = np.random.default_rng(0).uniform(size=(5, 3, 20, 20)).astype(np.float32)
    for one, offer in zip(found, (full, offered(tiny_bundle, path)), strict=True):
        session = onnxruntime.InferenceSession(str(one.folder / "model.onnx"))
        assert [(i.name, i.shape[1:]) for i in session.get_inputs()] == [("input", [3, 20, 20])]
        [answer] = session.run(["logits"], {"input": samples})
        [own] = ModelCache(OnnxRuntime(threads=1), limit=1).load(tiny_bundle, offer.edges).run([samples])
        np.testing.assert_allclose(answer, own, rtol=1e-5, atol=1e-6)


def test_a_version_that_is_there_stays(tiny_bundle, tmp_path):
    [first] = write_repository(tiny_bundle, tmp_path)
    (first.folder.parent / "config.pbtxt").write_text("# mine\n")
    [second] = write_repository(tiny_bundle, tmp_path)
    assert (first.new, first.config_kept, second.new, second.config_kept) == (True, False, False, True)
    assert (first.folder.parent / "config.pbtxt").read_text() == "# mine\n"
    [third] = write_repository(tiny_bundle, tmp_path, replace_config=True)
    assert not third.config_kept
    assert read_config(first.folder.parent).name == "tiny"


def test_a_version_of_another_bundle_is_not_overwritten(tiny_bundle, tmp_path):
    [first] = write_repository(tiny_bundle, tmp_path)
    (first.folder / "pathweave.json").write_text(json.dumps({"bundle": "0" * 64, "model": "tiny"}))
    before = (first.folder / "model.onnx").read_bytes()
    with pytest.raises(UsageError, match="comes from another bundle"):
        write_repository(tiny_bundle, tmp_path)
    assert (first.folder / "model.onnx").read_bytes() == before


@pytest.mark.parametrize("path", ["tiny:images", "tiny:tail", "tiny@nowhere"])
def test_what_needs_this_server_or_is_not_there_is_refused(tiny_bundle, tmp_path, path):
    with pytest.raises(UsageError):
        write_repository(tiny_bundle, tmp_path, paths=[path])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("rows", "delay_ms"), [(0, 1.0), (1, -1.0), (1, float("nan"))])
def test_batching_that_makes_no_sense_is_refused(rows, delay_ms):
    with pytest.raises(UsageError):
        Batching(rows, delay_ms)
