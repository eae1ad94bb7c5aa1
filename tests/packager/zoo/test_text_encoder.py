from __future__ import annotations

import pytest
import torch

from packager.zoo.text_encoder import EncoderSize, TextClassifier

SIZE = EncoderSize(vocabulary=40, channels=16, layers=2, heads=2, inner=24, positions=32)


@pytest.fixture(scope="module")
def classifier() -> TextClassifier:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TextClassifier(SIZE, classes=3, tokenizer=b"", max_tokens=12).eval().requires_grad_(False)


def _tokens(length: int, padded: int) -> torch.Tensor:
    found = torch.zeros(1, 2, padded, dtype=torch.int64)
    found[0, 0, :length] = torch.arange(3, 3 + length)
    found[0, 1, :length] = 1
    return found


def test_padding_changes_no_answer(classifier):
    short, long = classifier(_tokens(7, 7)), classifier(_tokens(7, 12))
    assert torch.allclose(short, long, atol=1e-6)


def test_what_stands_in_the_padding_is_not_read(classifier):
    tokens = _tokens(7, 12)
    other = tokens.clone()
    other[0, 0, 7:] = 11
    assert torch.equal(classifier(tokens), classifier(other))


def test_padding_is_zero_after_every_layer_and_tokens_are_not(classifier):
    hidden = classifier.embeddings(_tokens(7, 12))
    for layer in (None, *classifier.layers):
        hidden = hidden if layer is None else layer(hidden)
        assert not hidden[:, 7:].any()
        assert bool((hidden[:, :7].abs().amax(-1) > 0).all())


def test_weights_are_those_that_hugging_face_names(classifier):
    transformers = pytest.importorskip("transformers", reason="compares with the library where it is installed")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=32,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        reference = transformers.BertModel(config, add_pooling_layer=False).eval()
    own = TextClassifier(SIZE, classes=3, tokenizer=b"").eval()
    own.load_encoder(reference.state_dict())
    tokens = torch.cat([_tokens(5, 9), _tokens(9, 9)])
    with torch.no_grad():
        hidden = reference(input_ids=tokens[:, 0], attention_mask=tokens[:, 1]).last_hidden_state
        mean = (hidden * tokens[:, 1, :, None]).sum(1) / tokens[:, 1].sum(1, keepdim=True)
        expected = torch.nn.functional.normalize(mean, dim=-1)
        assert torch.allclose(own.embed(tokens), expected, atol=1e-5)
