from __future__ import annotations

import numpy as np
import pytest

from device_sdk.data.image_files import decode_jpeg, encode_all
from device_sdk.data.preprocessing import prepare
from device_sdk.errors import InputError
from device_sdk.offload.asking import AskClient
from device_sdk.offload.open_inference import InferRequest, NamedTensor, encode_request
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.runtimes import OnnxRuntime
from server.inference.offers import offers


@pytest.fixture(scope="module")
def jpegs(tiny_bundle):
    return next(offer for offer in offers(tiny_bundle) if offer.name.endswith(":jpeg"))


def request(data):
    return InferRequest((NamedTensor("image", data),))


def test_jpegs_are_decoded_and_prepared_as_the_manifest_says(jpegs, tiny, tiny_bundle):
    data = encode_all(tiny.images[:3])
    [taken] = jpegs.take(request(data)).tensors
    decoded = np.stack([decode_jpeg(one, channels=3) for one in data])
    np.testing.assert_array_equal(taken, prepare(decoded, tiny_bundle.manifest.preprocessing, input_shape=(3, 20, 20)))
    assert jpegs.metadata()["inputs"] == [{"name": "image", "datatype": "BYTES", "shape": [-1]}]
    assert jpegs.metadata()["pathweave"]["content"] == "image/jpeg"
    assert jpegs.working_bytes(request(data)) >= taken.nbytes


@pytest.mark.parametrize("value", [b"no", b""])
def test_what_is_no_jpeg_is_refused_before_memory_is_reserved(jpegs, value):
    data = np.empty(1, object)
    data[0] = value
    with pytest.raises(InputError, match="not a JPEG"):
        jpegs.working_bytes(request(data))


def test_an_empty_batch_is_refused(jpegs):
    with pytest.raises(InputError, match="at least one row"):
        jpegs.take(request(np.empty(0, object)))


def client(url, tiny_bundle, **settings):
    manifest = tiny_bundle.manifest
    return AskClient(
        RemoteModel(server=url, model="tiny:jpeg", timeout_s=20.0, **settings),
        class_names=manifest.task.class_names,
        input_shape=manifest.cut_points[0].tensors[0].shape,
        preprocessing=manifest.preprocessing,
    )


def test_a_device_sends_jpegs_and_gets_the_answers_of_the_decoded_images(server, tiny, tiny_bundle):
    images, manifest = tiny.images[:5], tiny_bundle.manifest
    tensors = prepare(images, manifest.preprocessing, input_shape=(3, 20, 20))
    model = OnnxRuntime(threads=1).load(tiny_bundle.stretch(tiny_bundle.supernet.original.edges))
    sizes = []
    for quality in (95, 30):
        asked = client(server.url, tiny_bundle, privacy="inputs", jpeg_quality=quality)
        decoded = np.stack([decode_jpeg(one, channels=3) for one in encode_all(images, quality=quality)])
        right = model.run([prepare(decoded, manifest.preprocessing, input_shape=(3, 20, 20))])[0]
        for known in (images, None):
            reply = asked.answer(tensors, known)
            assert reply.failure is None
            np.testing.assert_allclose(reply.output, right, atol=1e-5)
        sizes.append(asked.request_bytes(tensors, images))
    assert sizes[1] < sizes[0]


@pytest.mark.parametrize("privacy", ["never", "activations"])
def test_a_jpeg_is_an_input_for_privacy(server, tiny, tiny_bundle, privacy):
    tensors = prepare(tiny.images[:1], tiny_bundle.manifest.preprocessing, input_shape=(3, 20, 20))
    assert "privacy" in client(server.url, tiny_bundle, privacy=privacy).answer(tensors, tiny.images[:1]).failure


def test_a_damaged_jpeg_is_refused_over_http(server):
    data = np.empty(1, object)
    data[0] = b"\xff\xd8 nothing"
    body, headers = encode_request(request(data))
    reply = server.ask("/v2/models/tiny:jpeg/infer", method="POST", body=body, headers=headers)
    assert reply.status == 400
    assert "not a JPEG" in reply.json()["error"]
