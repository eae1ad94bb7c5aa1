from __future__ import annotations

import numpy as np
import pytest

from device_sdk.errors import DeadlineError, ProtocolError, RefusedError, TransferError, UsageError
from device_sdk.offload.client import InferenceClient, ModelMetadata, TensorMetadata
from device_sdk.offload.open_inference import NamedTensor
from device_sdk.transports import make_transport

IMAGES = np.random.default_rng(7).integers(0, 256, (6, 4, 5, 3), dtype=np.uint8)
EXPECTED = IMAGES.mean(axis=(1, 2), dtype=np.float64).astype(np.float32)


def client(url: str, model: str = "bright:images", **settings: int) -> InferenceClient:
    return InferenceClient(url, model, make_transport(url), **settings)


def infer(client: InferenceClient, metadata: ModelMetadata | None = None) -> np.ndarray:
    response = client.infer([NamedTensor("image", IMAGES)], timeout_s=5, metadata=metadata)
    return response.outputs[0].data


def test_metadata_says_what_a_model_takes_and_gives(faulty_server):
    metadata = client(faulty_server.url).metadata(5)
    assert metadata == ModelMetadata(
        inputs=(TensorMetadata("image", "UINT8", (-1, 4, 5, 3)),),
        outputs=(TensorMetadata("logits", "FP32", (-1, 3)),),
        versions=("1",),
        class_names=("red", "green", "blue"),
        bundle="0" * 64,
        binary=True,
    )


def test_another_vendors_server_tells_no_class_names_and_answers(faulty_server):
    faulty_server.fail("foreign")
    metadata = client(faulty_server.url).metadata(5)
    assert (metadata.class_names, metadata.bundle, metadata.versions) == (None, None, ())
    assert infer(client(faulty_server.url), metadata).tobytes() == EXPECTED.tobytes()


@pytest.mark.parametrize("fault", ["", "json_only"])
def test_answers_are_the_models_bit_by_bit(faulty_server, fault):
    faulty_server.fail(fault)
    assert infer(client(faulty_server.url)).tobytes() == EXPECTED.tobytes()
    size_bytes = int(faulty_server.asked()[-1].split()[-1])
    assert (size_bytes < IMAGES.nbytes + 400) == (fault == "")  # JSON takes more than a byte per pixel


def test_metadata_at_hand_is_not_asked_for_again(faulty_server):
    asking = client(faulty_server.url)
    metadata = asking.metadata(5)
    faulty_server.fail("")
    infer(asking, metadata)
    assert [line.split()[0] for line in faulty_server.asked()] == ["POST"]


WRONG_REPLIES = {
    "no_id": "another request",
    "wrong_id": "another request",
    "wrong_model": "another model",
    "wrong_version": "another version",
    "wrong_name": "other outputs",
    "wrong_shape": "not as in the metadata",
    "one_more_class": "not as in the metadata",
    "one_more_sample": "different batch sizes",
    "wrong_datatype": "not as in the metadata",
    "nan": "NaN",
    "infinity": "NaN",
    "garbage": "breaks the protocol",
    "empty": "breaks the protocol",
    "not_json": "breaks the protocol",
    "cut_json": "the body has 30 bytes",
    "trailing": "4 bytes follow",
    "header_length": "Inference-Header-Content-Length",
    "huge": "more than",
}


@pytest.mark.parametrize("fault", WRONG_REPLIES)
def test_a_reply_that_is_not_the_answer_does_not_get_through(faulty_server, fault):
    asking = client(faulty_server.url)
    metadata = asking.metadata(5)
    faulty_server.fail(fault)
    with pytest.raises(ProtocolError, match=WRONG_REPLIES[fault]):
        infer(asking, metadata)
    faulty_server.fail("")
    assert infer(asking, metadata).tobytes() == EXPECTED.tobytes()


def test_the_reply_to_an_earlier_request_does_not_get_through(faulty_server):
    asking = client(faulty_server.url)
    metadata = asking.metadata(5)
    infer(asking, metadata)
    faulty_server.fail("stale")
    with pytest.raises(ProtocolError, match="another request"):
        infer(asking, metadata)


@pytest.mark.parametrize(("fault", "status"), [("html_500", 500), ("busy", 503), ("redirect", 302)])
def test_a_refusal_has_its_status(faulty_server, fault, status):
    asking = client(faulty_server.url)
    metadata = asking.metadata(5)
    faulty_server.fail(fault)
    with pytest.raises(RefusedError) as caught:
        infer(asking, metadata)
    assert caught.value.status == status
    assert "<" not in str(caught.value)


@pytest.mark.parametrize("fault", ["html_metadata", "another_model"])
def test_metadata_of_something_else_is_refused(faulty_server, fault):
    faulty_server.fail(fault)
    with pytest.raises(ProtocolError):
        client(faulty_server.url).metadata(5)


def test_a_model_that_is_not_there_is_refused_with_the_servers_words(faulty_server):
    with pytest.raises(RefusedError, match="there is no such model") as caught:
        client(faulty_server.url, "nobody/../bright").metadata(5)
    assert caught.value.status == 404
    assert faulty_server.asked() == ["GET /v2/models/nobody%2F..%2Fbright"]


@pytest.mark.parametrize("fault", ["slow", "drip_head", "drip_body", "slow_metadata"])
def test_a_slow_server_is_left_at_the_deadline(faulty_server, fault):
    faulty_server.fail(fault)
    with pytest.raises(DeadlineError):  # the server holds its reply until it is told otherwise
        client(faulty_server.url).infer([NamedTensor("image", IMAGES)], timeout_s=0.3)


@pytest.mark.parametrize("fault", ["hang_up", "not_http", "cut_connection"])
def test_a_broken_connection_is_a_transfer_error(faulty_server, fault):
    faulty_server.fail(fault)
    with pytest.raises(TransferError):
        infer(client(faulty_server.url))


def test_a_time_out_that_has_passed_sends_nothing(faulty_server):
    with pytest.raises(DeadlineError):
        client(faulty_server.url).metadata(0)
    assert faulty_server.asked() == []


@pytest.mark.parametrize("url", ["models.example.org", "http://", "http://u:p@example.org", "http://example.org/?a=1"])
def test_what_is_not_an_address_is_refused(url):
    with pytest.raises(UsageError):
        InferenceClient(url, "m", make_transport("http://127.0.0.1"))
