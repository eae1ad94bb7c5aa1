from __future__ import annotations

import hashlib
import json

import pytest

from device_sdk.errors import RuntimeFailedError
from device_sdk.runtimes import providers
from device_sdk.runtimes.onnx_runtime import OnnxRuntime
from device_sdk.runtimes.providers import (
    ProviderSettings,
    installed_providers,
    provider_chain,
    provider_named,
    provider_version,
)
from tests.device_sdk.plugins import install_plugin


def chain(name, model=b"model", folder=None):
    _, provider = provider_named(name)
    return provider_chain(provider, provider.options(model, ProviderSettings(1, folder)))


def test_the_central_processor_needs_no_stand_in_and_others_get_one():
    assert chain("CPUExecutionProvider") == ["CPUExecutionProvider"]
    assert chain("CUDAExecutionProvider") == ["CUDAExecutionProvider", "CPUExecutionProvider"]


def test_engines_of_tensorrt_are_kept_under_the_digest_of_their_model(tmp_path):
    folder = tmp_path / "state" / "engines"
    one, other = (chain("TensorrtExecutionProvider", model, folder) for model in (b"1", b"2"))
    (name, options), *stand_ins = one
    assert (name, stand_ins) == ("TensorrtExecutionProvider", ["CUDAExecutionProvider", "CPUExecutionProvider"])
    assert folder.is_dir()
    assert (options["trt_engine_cache_enable"], options["trt_engine_cache_path"]) == ("True", str(folder))
    assert options["trt_engine_cache_prefix"] == hashlib.sha256(b"1").hexdigest()
    assert other[0][1]["trt_engine_cache_prefix"] != options["trt_engine_cache_prefix"]


def test_without_a_folder_tensorrt_keeps_nothing():
    assert chain("tensorrt")[0] == "TensorrtExecutionProvider"


def test_xnnpack_gets_the_threads_of_the_home():
    _, provider = provider_named("xnnpack")
    assert provider.options(b"", ProviderSettings(3)) == {"intra_op_num_threads": "3"}


def test_openvino_answers_in_single_precision_with_the_threads_of_the_home():
    _, provider = provider_named("openvino")
    found = json.loads(provider.options(b"", ProviderSettings(2))["load_config"])
    assert found == {"CPU": {"INFERENCE_NUM_THREADS": 2, "INFERENCE_PRECISION_HINT": "f32"}}


def test_a_provider_that_is_not_known_has_its_own_name_and_no_options():
    short, provider = provider_named("DmlExecutionProvider")
    assert (short, provider.name, provider.plugin) == ("DmlExecutionProvider", "DmlExecutionProvider", None)
    assert provider.options(b"", ProviderSettings(1)) == {}


def test_the_processor_is_always_there_and_has_no_version_of_its_own():
    assert "cpu" in installed_providers()
    assert provider_version("cpu") == ""


def test_a_provider_that_is_not_here_is_refused_with_those_that_are():
    missing = next(name for name in ("nnapi", "coreml", "cuda", "xnnpack") if name not in installed_providers())
    with pytest.raises(RuntimeFailedError, match="ONNX Runtime has no") as caught:
        OnnxRuntime(provider=missing)
    assert "CPUExecutionProvider" in caught.value.hint


def test_a_plugin_that_is_not_installed_says_how_it_is_installed():
    missing = [name for name in ("openvino", "qnn") if name not in installed_providers()]
    if not missing:
        pytest.skip("both plug-ins are installed")
    with pytest.raises(RuntimeFailedError) as caught:
        OnnxRuntime(provider=missing[0])
    assert f"pathweave[{missing[0]}]" in caught.value.hint


def test_a_plugin_that_finds_no_device_here_is_not_told_to_be_installed(tmp_path, monkeypatch):
    install_plugin(tmp_path, "", version="1.2")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(providers, "plugin_devices", lambda name: [])  # as on a processor of another maker
    with pytest.raises(
        RuntimeFailedError, match="onnxruntime_ep_openvino is installed and finds no device here"
    ) as caught:
        OnnxRuntime(provider="openvino")
    assert "pip install" not in caught.value.hint
