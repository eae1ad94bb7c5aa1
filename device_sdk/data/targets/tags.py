"""Texts with a class for each word: files in the columns of CoNLL."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from device_sdk.data.kinds.tagged_files import FORMS, TaggedText, read_tagged
from device_sdk.data.kinds.texts import TextTokenizer
from device_sdk.data.sample_sets import LocatedSamples, SampleSet, located, sample_set
from device_sdk.data.unlabelled import NO_CLASS
from device_sdk.errors import DataError


def load_tags(
    reference: str, class_names: Sequence[str], tokenizer: TextTokenizer, tokens: int, limit: int | None = None
) -> SampleSet:
    """The texts of ``FILE`` or ``FILE#part``, with targets int64 [count, tokens].

    Each line is a word, and in the last column its class, separated by spaces or tabs; empty lines divide texts. The
    first token of a word has its class; further ones, marks and padding do not count (-1), nor do words of classes that
    the model does not have. ``tokens``: that the model takes.

    Raises:
        DataError: no such file, not UTF-8, a line without a class, no text, or no class of the model's.
    """
    found, names = _texts(reference, limit)
    position_of = {name: at for at, name in enumerate(class_names)}
    unknown = sorted({tag for one in found for tag in one.tags} - position_of.keys())
    if len(unknown) == len({tag for one in found for tag in one.tags}):
        some = ", ".join(unknown[:3])
        raise DataError(
            f"{reference} has none of the model's classes: {some} is not among {', '.join(class_names[:3])}, …"
        )
    notes = (f"words of {len(unknown)} classes that the model does not have: {', '.join(unknown[:3])}",)
    targets = np.full((len(found), tokens), NO_CLASS, dtype=np.int64)
    texts = [one.text for one in found]
    for row, one, places in zip(targets, found, tokenizer.places(texts), strict=True):
        classes = np.array([position_of.get(tag, NO_CLASS) for tag in one.tags])
        words = _first_tokens(one.words, places)
        row[: len(words)] = np.where(words >= 0, classes[words], NO_CLASS)
    return SampleSet(texts, targets, tuple(class_names), names, notes if unknown else ())


def classes_of_tags(reference: str) -> tuple[str, ...]:
    """The classes in a file, sorted, O first. Raises as ``load_tags``."""
    found, _ = _texts(reference, None)
    return tuple(sorted({tag for one in found for tag in one.tags}, key=lambda tag: (tag != "O", tag)))


def _first_tokens(words: Sequence[str], places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """For each token the number of the word that it begins, -1 for others [tokens]."""
    ends = np.cumsum([len(word) + 1 for word in words])  # behind the space
    last = places[:, 1] - 1
    word = np.searchsorted(ends, last, side="right")
    word = np.where(places[:, 1] > places[:, 0], np.minimum(word, len(words) - 1), -1)
    begins = np.ones(len(word), dtype=bool)
    begins[1:] = word[1:] != word[:-1]
    return np.where(begins, word, -1)


def _texts(reference: str, limit: int | None) -> tuple[list[TaggedText], tuple[str, ...]]:
    path, part = located(reference, kinds=FORMS)
    entries = [(f"{number:07d}", "", text) for number, text in read_tagged(path)]
    found = sample_set(LocatedSamples(str(path), entries), part, limit=limit, labelled=False)
    return list(found.samples), found.names
