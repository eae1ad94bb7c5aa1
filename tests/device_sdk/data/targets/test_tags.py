from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("tokenizers", reason="the extra text is not installed")

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from device_sdk.data.kinds.texts import TextTokenizer
from device_sdk.data.targets import classes_of_tags, load_tags
from device_sdk.errors import DataError

NAMES = ("O", "B-place", "I-place")
PIECES = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "in", "new", "york", "##shire", "and", "rome", "s", "##now"]


def word_pieces(tokens):
    """In the way of BERT."""
    made = Tokenizer(models.WordPiece({piece: at for at, piece in enumerate(PIECES)}, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return TextTokenizer(made.to_str().encode(), max_tokens=tokens)


def byte_pairs(tokens):
    """In the way of GPT-2: the space is part of the token behind it."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = Tokenizer(models.BPE({letter: at for at, letter in enumerate(letters)}, []))
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    return TextTokenizer(made.to_str().encode(), max_tokens=tokens)


@pytest.fixture
def write(tmp_path):
    def write(text):
        (tmp_path / "own.conll").write_text(text, encoding="utf-8")
        return str(tmp_path / "own.conll")

    return write


TEXT = "-DOCSTART- -X- O\n\nin IN O\nnew\tNNP\tB-place\nyorkshire NNP I-place\nand CC O\n\nrome NNP B-place\n"


def test_the_first_token_of_a_word_has_its_class(write):
    found = load_tags(write(TEXT), NAMES, word_pieces(10), 10)
    assert list(found.samples) == ["in new yorkshire and", "rome"]
    assert found.labels.tolist() == [[-1, 0, 1, 2, -1, 0, -1, -1, -1, -1], [-1, 1, -1, -1, -1, -1, -1, -1, -1, -1]]
    assert (found.class_names, found.notes, len(found)) == (NAMES, (), 2)


def test_a_token_that_begins_with_the_space_before_a_word_is_the_first_of_it(write):
    [row, _] = load_tags(write(TEXT), NAMES, byte_pairs(20), 20).labels
    text = "in new yorkshire and"
    begun = [text[at] for at in np.flatnonzero(row >= 0)]
    assert row[row >= 0].tolist() == [0, 1, 2, 0]
    assert [letter.strip() for letter in begun] == ["i", "n", "y", "a"] or begun == ["i", " ", " ", " "]


def test_words_beyond_the_tokens_of_the_model_do_not_count(write):
    assert load_tags(write(TEXT), NAMES, word_pieces(4), 4).labels.tolist() == [[-1, 0, 1, -1], [-1, 1, -1, -1]]


def test_words_of_classes_that_the_model_does_not_have_do_not_count(write):
    found = load_tags(write("in O\nrome B-city\n"), NAMES, word_pieces(5), 5)
    assert found.labels.tolist() == [[-1, 0, -1, -1, -1]]
    assert found.notes == ("words of 1 classes that the model does not have: B-city",)


def test_a_file_names_its_classes(write):
    assert classes_of_tags(write(TEXT)) == ("O", "B-place", "I-place")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("in O\nrome\n", "line 2 has a word and no class"),
        ("\n\n", "holds no samples"),
        ("rome B-city\n", "none of the model's classes: B-city"),
    ],
)
def test_what_cannot_be_read_is_a_line(write, text, said):
    with pytest.raises(DataError, match=said):
        load_tags(write(text), NAMES, word_pieces(5), 5)


def test_a_file_that_is_no_text_is_a_line(tmp_path):
    (tmp_path / "own.conll").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match="no UTF-8 text"):
        load_tags(str(tmp_path / "own.conll"), NAMES, word_pieces(5), 5)
