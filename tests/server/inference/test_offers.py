from __future__ import annotations

import msgspec
import numpy as np
import pytest

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.preprocessing import prepare
from device_sdk.errors import InputError, ProtocolError
from device_sdk.offload.open_inference import InferRequest, NamedTensor, RequestedOutput
from device_sdk.offload.packing import Activations, pack
from device_sdk.offload.remote_model import path_model
from device_sdk.supernet.paths import enumerate_subnets
from device_sdk.supernet.plan import Edge
from server.inference.offers import offered, offers


@pytest.fixture(scope="module")
def tensors(tiny_bundle):
    return next(offer for offer in offers(tiny_bundle) if offer.name == "tiny")


@pytest.fixture(scope="module")
def images(tiny_bundle):
    return next(offer for offer in offers(tiny_bundle) if offer.name == "tiny:images")


@pytest.fixture(scope="module")
def tails(tiny_bundle):
    return next(offer for offer in offers(tiny_bundle) if offer.name == "tiny:tail")


def request(name, data, *outputs):
    return InferRequest((NamedTensor(name, data),), tuple(RequestedOutput(output, True) for output in outputs))


def test_a_bundle_offers_its_full_model_from_tensors_and_from_images(tiny_bundle):
    plain, pictures, _, _ = (offer.metadata() for offer in offers(tiny_bundle))
    assert plain["inputs"] == [{"name": "input", "datatype": "FP32", "shape": [-1, 3, 20, 20]}]
    assert pictures["inputs"] == [{"name": "image", "datatype": "UINT8", "shape": [-1, 20, 20, 3]}]
    for one, name in ((plain, "tiny"), (pictures, "tiny:images")):
        assert one["name"] == name
        assert one["versions"] == ["1"]
        assert one["outputs"] == [{"name": "logits", "datatype": "FP32", "shape": [-1, 3]}]
        assert one["pathweave"] == {
            "bundle": tiny_bundle.digest,
            "task": "classification",
            "class_names": ["blue", "green", "red"],
        }


def test_what_does_not_take_images_offers_tensors_alone(tiny_bundle):
    manifest = tiny_bundle.manifest
    first = msgspec.structs.replace(
        manifest.cut_points[0],
        tensors=(msgspec.structs.replace(manifest.cut_points[0].tensors[0], shape=(1200,)),),
    )
    flat = msgspec.structs.replace(manifest, cut_points=(first, *manifest.cut_points[1:]))
    bundle = Bundle(tiny_bundle.folder, tiny_bundle.blobs, flat, tiny_bundle.digest, has_signature=False)
    assert [offer.name for offer in offers(bundle)] == ["tiny", "tiny:tail"]


def test_images_are_prepared_as_the_manifest_says(images, tiny, tiny_bundle):
    [taken] = images.take(request("image", tiny.images[:4])).tensors
    expected = prepare(tiny.images[:4], tiny_bundle.manifest.preprocessing, input_shape=(3, 20, 20))
    np.testing.assert_array_equal(taken, expected)


def test_tensors_are_taken_as_they_are(tensors):
    data = np.zeros((2, 3, 20, 20), np.float32)
    [taken] = tensors.take(request("input", data, "logits")).tensors
    assert taken is data


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (request("image", np.zeros((1, 3, 20, 20), np.float32)), "no input 'image'; it has input"),
        (request("input", np.zeros((1, 3, 20, 20), np.float64)), "is FP64, the model takes FP32"),
        (request("input", np.zeros((3, 20, 20), np.float32)), "shape [3, 20, 20]"),
        (request("input", np.zeros((1, 20, 20, 3), np.float32)), "shape [1, 20, 20, 3]"),
        (request("input", np.zeros((0, 3, 20, 20), np.float32)), "at least one"),
        (request("input", np.zeros((1, 3, 20, 20), np.float32), "other"), "no output 'other'; it has logits"),
        (InferRequest(()), "input input is missing"),
    ],
)
def test_what_does_not_fit_is_refused(tensors, asked, message):
    with pytest.raises(InputError) as caught:
        tensors.take(asked)
    assert message in str(caught.value)


def test_a_reply_has_what_was_asked_for_and_the_same_id(tensors):
    logits = np.ones((1, 3), np.float32)
    data = np.zeros((1, 3, 20, 20), np.float32)
    reply = tensors.reply(InferRequest((NamedTensor("input", data),), id="7"), [logits])
    assert (reply.model_name, reply.model_version, reply.id) == ("tiny", "1", "7")
    assert [output.name for output in reply.outputs] == ["logits"]


def packet(bundle, *, position=2, tail=("o2", "o3", "o4"), digest=None):
    shape = bundle.supernet.cut_points[position].tensors[0].shape
    tensor = np.random.default_rng(0).random((2, *shape), dtype=np.float32)
    sent = Activations(digest or bundle.digest, position, tuple(Edge(block) for block in tail), (tensor,))
    return tensor, np.frombuffer(pack(sent), np.uint8)[np.newaxis]


def test_a_packet_of_activations_names_the_tail_that_runs(tails, tiny_bundle):
    assert tails.metadata()["inputs"] == [{"name": "activations", "datatype": "UINT8", "shape": [1, -1]}]
    tensor, data = packet(tiny_bundle, tail=("m2-4", "o4"))
    work = tails.take(request("activations", data))
    assert work.edges == (Edge("m2-4"), Edge("o4"))
    np.testing.assert_allclose(work.tensors[0], tensor, atol=1 / 255)


def test_packets_that_do_not_fit_are_refused(tails, tiny_bundle):
    _, data = packet(tiny_bundle)
    with pytest.raises(ProtocolError, match="another version"):
        tails.take(request("activations", packet(tiny_bundle, digest="0" * 64)[1]))
    for wrong in (data[:, :-1], np.concatenate([data, data], axis=1), data[:, :0]):
        with pytest.raises((ProtocolError, InputError)):
            tails.take(request("activations", wrong))
    with pytest.raises(ProtocolError, match="tail does not fit"):
        tails.take(request("activations", packet(tiny_bundle, tail=("o3", "o4"))[1]))
    with pytest.raises(InputError, match="shape"):
        tails.take(request("activations", np.concatenate([data, data])))


@pytest.mark.parametrize("suffix", ["", ":images"])
def test_a_path_may_be_named(tiny_bundle, tiny, suffix):
    path = next(
        one for one in enumerate_subnets(tiny_bundle.supernet, limit=64) if one != tiny_bundle.supernet.original
    )
    name = path_model("tiny", path, images=bool(suffix))
    model = offered(tiny_bundle, name)
    assert model is not None
    assert model.metadata()["name"] == name
    given = request("image", tiny.images[:2]) if suffix else request("input", np.zeros((2, 3, 20, 20), np.float32))
    assert model.take(given).edges == path.edges


@pytest.mark.parametrize("name", ["tiny@o0", "tiny@hybrid", "tiny@", "tiny@o0:tail", "tiny:other"])
def test_a_path_that_is_none_is_not_offered(tiny_bundle, name):
    assert offered(tiny_bundle, name) is None
