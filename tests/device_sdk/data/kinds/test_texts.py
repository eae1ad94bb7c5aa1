from __future__ import annotations

import hashlib

import numpy as np
import pytest

from device_sdk.data.inputs import cut_tokens, resize_prepared
from device_sdk.data.kinds import preparer_of
from device_sdk.data.kinds.texts import TextPreprocessing, TextTokenizer, lengthened
from device_sdk.errors import InputError

tokenizers = pytest.importorskip("tokenizers", reason="the extra text is not installed")

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "two", "three", "four", "five", "six")


@pytest.fixture(scope="module")
def tokenizer() -> bytes:
    from tokenizers import models, pre_tokenizers, processors

    made = tokenizers.Tokenizer(models.WordLevel({word: at for at, word in enumerate(WORDS)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.enable_truncation(4)  # which a model's own length replaces
    made.enable_padding(length=20)
    return made.to_str().encode()


@pytest.fixture
def preparer(tokenizer):
    name = hashlib.sha256(tokenizer).hexdigest()
    described = TextPreprocessing(name, len(tokenizer), max_tokens=6)
    return preparer_of(described, (2, 6), {name: tokenizer}.__getitem__)


def test_a_text_becomes_ids_and_a_mask_padded_at_its_end(preparer):
    found = preparer.prepare("one two")
    assert found.dtype == np.int64
    assert found.tolist() == [[[2, 4, 5, 3, 0, 0], [1, 1, 1, 1, 0, 0]]]


def test_a_text_of_too_many_tokens_keeps_the_first_ones_and_its_end(preparer):
    assert preparer.prepare(["one two three four five six"])[0, 0].tolist() == [2, 4, 5, 6, 7, 3]


def test_a_shorter_input_size_cuts_in_the_same_way_before_and_after_preparing(preparer):
    texts = ["one two three four five six", "one", "two two two"]
    short = preparer.prepare(texts, (4,))
    assert short[:, 0].tolist() == [[2, 4, 5, 3], [2, 4, 3, 0], [2, 5, 5, 3]]
    assert np.array_equal(resize_prepared(preparer.prepare(texts), (4,)), short)
    assert np.array_equal(preparer.inputs(texts).take(np.arange(3), (4,)), short)


def test_cutting_to_a_length_that_fits_changes_nothing_but_the_padding(preparer):
    prepared = preparer.prepare(["one two"])
    assert np.array_equal(cut_tokens(prepared, 4), prepared[..., :4])


def test_a_part_of_the_inputs_is_taken_in_its_order(preparer):
    inputs = preparer.inputs(["one", "two", "three"]).subset(np.array([2, 0]))
    assert len(inputs) == 2
    assert inputs.take(np.array([1, 0]))[:, 0, 1].tolist() == [4, 6]


def test_texts_that_are_cut_and_unknown_tokens_are_counted(preparer):
    cut, unknown = preparer.notes(["one two three four five", "яблоко one"])
    assert cut == "1 of 2 texts have more than the model's 6 tokens and are cut"
    assert unknown == "1 of 10 tokens are unknown to the model (10.0%)"
    assert preparer.notes(["one"]) == ()


def test_type_ids_are_a_third_row_of_zeros(tokenizer):
    name = hashlib.sha256(tokenizer).hexdigest()
    described = TextPreprocessing(name, len(tokenizer), max_tokens=6, type_ids=True)
    found = preparer_of(described, (3, 6), {name: tokenizer}.__getitem__).prepare("one")
    assert found.shape == (1, 3, 6)
    assert not found[:, 2].any()


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ("", "text 0 is empty"),
        (["one", " \n"], "text 1 is empty"),
        ([1], "text 0 is a int"),
        (3, "expected a text or a list of texts, got int"),
        (b"one", "expected a text or a list of texts, got bytes"),
    ],
)
def test_what_is_no_text_is_refused(preparer, samples, message):
    with pytest.raises(InputError, match=message):
        preparer.prepare(samples)


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"model": {"type": "Unknown"}}'])
def test_what_is_no_tokenizer_is_refused(data):
    with pytest.raises(InputError, match="the tokenizer cannot be read"):
        TextTokenizer(data, max_tokens=8)


def test_a_long_text_is_read_only_as_far_as_the_model_can_take_it(preparer, tokenizer):
    endless = TextTokenizer(tokenizer, max_tokens=6)
    (found,) = endless.encode(["one " * 1_000_000])
    assert found.cut
    assert len(found.ids) == 6


def test_a_shorter_prepared_text_is_padded_to_the_length_of_the_model(tokenizer):
    described = TextPreprocessing("0" * 64, len(tokenizer), max_tokens=6, pad_id=9)
    prepare = preparer_of(described, (2, 6), lambda _: tokenizer).prepare
    assert np.array_equal(lengthened(prepare(["one", "two three"], (4,)), described), prepare(["one", "two three"]))
