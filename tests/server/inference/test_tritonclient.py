"""The unmodified client of Triton and KServe."""

from __future__ import annotations

import numpy as np
import pytest

tritonhttp = pytest.importorskip("tritonclient.http", reason="needs the extra: pip install 'pathweave[dev]'")

from tritonclient.utils import InferenceServerException  # noqa: E402

from device_sdk.data.preprocessing import prepare  # noqa: E402
from device_sdk.runtimes import OnnxRuntime  # noqa: E402

COMPRESSION = pytest.mark.parametrize("algorithm", [None, "gzip", "deflate"])


@pytest.fixture
def client(server):
    with tritonhttp.InferenceServerClient(f"{server.host}:{server.port}") as client:
        yield client


@pytest.fixture(scope="module")
def tensors(tiny, tiny_bundle):
    return prepare(tiny.images[:5], tiny_bundle.manifest.preprocessing, input_shape=(3, 20, 20))


@pytest.fixture(scope="module")
def expected(tensors, tiny_bundle):
    return OnnxRuntime(threads=1).load(tiny_bundle.stretch(tiny_bundle.supernet.original.edges)).run([tensors])[0]


def given(data, name="input", datatype="FP32", *, binary=True):
    tensor = tritonhttp.InferInput(name, list(data.shape), datatype)
    tensor.set_data_from_numpy(data, binary_data=binary)
    return [tensor]


def test_health(client):
    assert client.is_server_live()
    assert client.is_server_ready()
    assert client.is_model_ready("tiny")
    assert client.is_model_ready("tiny:images", "1")
    assert not client.is_model_ready("none")
    assert not client.is_model_ready("tiny", "2")


def test_metadata(client, tiny_bundle):
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata = client.get_model_metadata("tiny:images")
    assert metadata["name"] == "tiny:images"
    assert metadata["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 20, 20, 3]}]
    assert metadata["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}]
    assert metadata["pathweave"]["bundle"] == tiny_bundle.digest
    assert client.get_model_metadata("tiny", "1")["versions"] == ["1"]


@pytest.mark.parametrize("binary_in", [True, False])
@pytest.mark.parametrize("binary_out", [True, False])
def test_tensors_in_json_and_binary_in_and_out(client, tensors, expected, binary_in, binary_out):
    outputs = [tritonhttp.InferRequestedOutput("logits", binary_data=binary_out)]
    result = client.infer("tiny", given(tensors, binary=binary_in), outputs=outputs, request_id="seven")
    np.testing.assert_allclose(result.as_numpy("logits"), expected, atol=1e-5)
    response = result.get_response()
    assert response["id"] == "seven"
    assert response["model_name"] == "tiny"
    assert response["model_version"] == "1"
    assert ("data" in response["outputs"][0]) != binary_out


def test_without_outputs_all_come(client, tensors, expected):
    result = client.infer("tiny", given(tensors), model_version="1")
    np.testing.assert_allclose(result.as_numpy("logits"), expected, atol=1e-5)


@pytest.mark.parametrize("binary", [True, False])
def test_images(client, tiny, expected, binary):
    result = client.infer("tiny:images", given(tiny.images[:5], "image", "UINT8", binary=binary))
    np.testing.assert_allclose(result.as_numpy("logits"), expected, atol=1e-5)


@COMPRESSION
@pytest.mark.parametrize("back", [None, "gzip", "deflate"])
def test_compressed_requests_and_replies(client, tensors, expected, algorithm, back):
    result = client.infer(
        "tiny",
        given(tensors),
        request_compression_algorithm=algorithm,
        response_compression_algorithm=back,
    )
    np.testing.assert_allclose(result.as_numpy("logits"), expected, atol=1e-5)


def test_requests_at_once(server, tensors, expected):
    with tritonhttp.InferenceServerClient(f"{server.host}:{server.port}", concurrency=4) as client:
        handles = [client.async_infer("tiny", given(tensors[:count])) for count in (1, 2, 3, 4, 5)]
        for count, handle in zip((1, 2, 3, 4, 5), handles, strict=True):
            np.testing.assert_allclose(handle.get_result().as_numpy("logits"), expected[:count], atol=1e-5)


@pytest.mark.parametrize(
    ("model", "version", "data", "name", "datatype", "status", "message"),
    [
        ("none", "", (5, 3, 20, 20), "input", "FP32", "404", "no model 'none'"),
        ("tiny", "2", (5, 3, 20, 20), "input", "FP32", "404", "version"),
        ("tiny", "", (5, 3, 20, 19), "input", "FP32", "400", "shape"),
        ("tiny", "", (3, 20, 20), "input", "FP32", "400", "shape"),
        ("tiny", "", (5, 3, 20, 20), "input", "FP64", "400", "FP64"),
        ("tiny", "", (5, 3, 20, 20), "other", "FP32", "400", "other"),
        ("tiny:images", "", (5, 20, 20, 3), "image", "FP32", "400", "UINT8"),
    ],
)
def test_errors_reach_the_caller(client, model, version, data, name, datatype, status, message):
    zeros = np.zeros(data, np.float64 if datatype == "FP64" else np.float32)
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, given(zeros, name, datatype), model_version=version)
    assert caught.value.status() == status
    assert message in caught.value.message()


@pytest.mark.parametrize(
    ("model", "name", "datatype", "data"),
    [
        ("tiny", "input", "FP16", np.zeros((1, 3, 20, 20), np.float16)),
        ("tiny", "input", "UINT8", np.zeros((1, 3, 20, 20), np.uint8)),
        ("tiny", "input", "FP32", np.zeros((1, 20, 20, 3), np.float32)),
        ("tiny", "input", "FP32", np.zeros((0, 3, 20, 20), np.float32)),
        ("tiny", "input", "FP32", np.zeros((1, 1, 3, 20, 20), np.float32)),
        ("tiny", "input", "BYTES", np.array([b"a picture"], dtype=object)),
        ("tiny:images", "image", "UINT8", np.zeros((1, 3, 20, 20), np.uint8)),
        ("tiny:images", "image", "UINT8", np.zeros((20, 20, 3), np.uint8)),
        ("tiny:jpeg", "image", "BYTES", np.array([b"no JPEG"], dtype=object)),
        ("tiny:jpeg", "image", "BYTES", np.array([], dtype=object)),
        ("tiny:jpeg", "image", "UINT8", np.zeros((1, 20, 20, 3), np.uint8)),
    ],
    ids=lambda value: "x".join(map(str, value.shape)) if isinstance(value, np.ndarray) else value,
)
@pytest.mark.parametrize("binary", [True, False])
def test_other_types_and_layouts_are_one_clear_400(client, model, name, datatype, data, binary):
    if datatype == "FP16" and not binary:
        pytest.skip("the client sends no FP16 as JSON")
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, given(data, name, datatype, binary=binary))
    assert caught.value.status() == "400"
    assert 10 < len(caught.value.message()) < 400
    assert client.is_model_ready(model)


def test_two_inputs_for_one_are_refused(client, tensors):
    with pytest.raises(InferenceServerException, match=r"\[400\]|input"):
        client.infer("tiny", [*given(tensors), *given(tensors, "another")])


def test_an_output_that_the_model_does_not_have(client, tensors):
    with pytest.raises(InferenceServerException, match="no output 'labels'"):
        client.infer("tiny", given(tensors), outputs=[tritonhttp.InferRequestedOutput("labels")])


def test_what_the_server_does_not_offer_is_an_error(client):
    for call in (client.get_model_repository_index, client.get_inference_statistics, client.get_log_settings):
        with pytest.raises(InferenceServerException, match=r"\[404\]|nothing at this address"):
            call()


def test_a_token_in_the_clients_headers(serve, tiny, tensors, expected):
    server = serve(tiny.folder, token="secret")
    with tritonhttp.InferenceServerClient(f"{server.host}:{server.port}") as client:
        assert client.is_server_ready()
        with pytest.raises(InferenceServerException, match="requires a token"):
            client.infer("tiny", given(tensors))
        result = client.infer("tiny", given(tensors), headers={"Authorization": "Bearer secret"})
        np.testing.assert_allclose(result.as_numpy("logits"), expected, atol=1e-5)
