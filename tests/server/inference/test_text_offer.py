"""Texts between a device and a server whose model has a tokenizer of its own."""

from __future__ import annotations

import json

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra text is not installed")
pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import InputError
from device_sdk.offload.agreement import TEXT_CONTENT
from device_sdk.offload.open_inference import InferRequest, NamedTensor
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import FALLBACK, SERVER
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, Ask, MaxConfidence, Plan, RemoteRef
from pathweave.cli import main
from server.inference.offers import offered, offers
from tests.packager.small_texts import TOPICS, texts, write_texts

TEXTS = ["some bread and salt with cheese", "the moon and a star near the sun", "the team with a ball"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two bundles, ``small`` and ``large``, of the same classes and different tokenizers."""
    found = tmp_path_factory.mktemp("texts")
    data = write_texts(found / "training.csv", 120, seed=3)
    for name, model in (("small", "model"), ("large", "other")):
        arguments = ["package", "--model", f"tests.packager.small_texts:{model}", "--data", str(data)]
        arguments += ["--val", str(data), "--steps", "4", "--exits", "0", "--name", name]
        assert main([*arguments, "--out", str(found / "bundles" / name), "--json"]) == 0
    return found / "bundles"


@pytest.fixture(scope="module")
def large(folder):
    return Bundle.open(folder / "large")


def request(*values):
    data = np.empty(len(values), object)
    data[:] = values
    return InferRequest((NamedTensor("text", data),))


def test_texts_are_offered_under_a_name_of_their_own(large):
    assert [one.name for one in offers(large)] == ["large", "large:texts", "large:tail"]
    found = offered(large, "large:texts")
    assert found.metadata()["inputs"] == [{"name": "text", "datatype": "BYTES", "shape": [-1]}]
    assert found.metadata()["pathweave"]["content"] == TEXT_CONTENT
    path = ",".join(map(str, large.supernet.original.edges))
    assert offered(large, f"large@{path}:texts").edges == found.edges
    [taken] = found.take(request(*(text.encode() for text in TEXTS))).tensors
    assert taken.shape == (3, 2, 32)
    assert found.working_bytes(request(b"bread " * 100)) > 600 + taken[0].nbytes


@pytest.mark.parametrize(("data", "says"), [(b"\xff", "text 0 is not UTF-8: byte 0"), (b" ", "text 0 is empty")])
def test_what_is_no_text_is_refused(large, data, says):
    with pytest.raises(InputError, match=says):
        offered(large, "large:texts").take(request(data))


def test_a_request_in_json_holds_plain_text(folder, serve):
    described = {"name": "text", "datatype": "BYTES", "shape": [3], "data": TEXTS}
    body = json.dumps({"inputs": [described]}).encode()
    reply = serve(folder).ask("/v2/models/large:texts/infer", method="POST", body=body)
    assert reply.status == 200
    logits = np.reshape(reply.json()["outputs"][0]["data"], (3, 3))
    assert [list(TOPICS)[at] for at in logits.argmax(1)] == ["food", "sky", "sport"]


def test_a_device_asks_about_texts_and_not_about_tokens_that_the_server_reads_otherwise(folder, serve, tmp_path):
    url = serve(folder).url
    opened = (AdaptiveModel.open(folder / name, state_folder=tmp_path) for name in ("large", "small"))
    with next(opened) as there, next(opened) as model:
        right = there(TEXTS).output
        model.remote.connect(RemoteModel(server=url, model="large:texts", privacy="inputs", timeout_s=20.0))
        asking = Ask(MaxConfidence(UNREACHABLE_CONFIDENCE), RemoteRef("large:texts", there.bundle.digest))
        supernet = model.bundle.supernet
        [length, *_] = supernet.input_sizes
        for subnet in (supernet.original, supernet.any_size_original.at(length.size)):
            model.use(Plan(subnet, hard=asking))
            answer = model(TEXTS)
            assert answer.source == (SERVER,) * 3
            np.testing.assert_allclose(answer.output, right, atol=1e-4)
            assert model(TEXTS[0]).source == (SERVER,)
        tokens = model.prepare(
            TEXTS[0],
        )
        assert model.infer(tokens).source == (FALLBACK,)


def test_adapting_learns_what_the_server_answers_to_texts(folder, serve, tmp_path):
    known = texts(160, 5)
    labels = [list(TOPICS).index(label) for _, label in known]
    with AdaptiveModel.open(folder / "small", state_folder=tmp_path) as model:
        model.remote.connect(
            RemoteModel(server=serve(folder).url, model="large:texts", privacy="inputs", timeout_s=20.0)
        )
        goal = Goal(latency_ratio=50.0, share_asked=0.3)
        found = model.adapt([text for text, _ in known], goal, labels=labels, consider={"ask", "subnets"})
        assert not any("is not asked" in note for note in found.notes)
