"""A small text classifier with its tokenizer, and labelled texts that it knows: for tests of packaging and adapting."""

from __future__ import annotations

import csv
import random
from pathlib import Path

import torch
from torch.nn import functional

from device_sdk.data.kinds import preparer_of
from packager.inputs.text_input import text_input
from packager.zoo.text_encoder import EncoderSize, TextClassifier

TOPICS = {
    "food": ["bread", "cheese", "apple", "soup", "rice", "salt"],
    "sky": ["star", "moon", "cloud", "sun", "comet", "orbit"],
    "sport": ["ball", "goal", "team", "race", "swim", "coach"],
}
COMMON = [
    "the",
    "a",
    "of",
    "and",
    "is",
    "was",
    "very",
    "some",
    "this",
    "that",
    "with",
    "for",
    "near",
    "old",
    "new",
    "one",
    "two",
]
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
TOKENS = 32
_STEPS = 120


def tokenizer(*, backwards: bool = False) -> bytes:
    """A BERT tokenizer.json with a word per token; ``backwards``: the words have other ids."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

    words = [*COMMON, *(word for topic in TOPICS.values() for word in topic)]
    ids = {word: at for at, word in enumerate([*SPECIAL, *(reversed(words) if backwards else words)])}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return made.to_str().encode()


def texts(count: int, seed: int) -> list[tuple[str, str]]:
    """Texts of 4 to 28 words, of which a third belong to their topic or now and then to another."""
    chance = random.Random(seed)
    found = []
    for _ in range(count):
        label = chance.choice(list(TOPICS))
        words = []
        for _ in range(chance.randint(4, 28)):
            topic = label if chance.random() < 0.85 else chance.choice(list(TOPICS))
            words.append(chance.choice(TOPICS[topic] if chance.random() < 0.35 else COMMON))
        found.append((" ".join(words), label))
    return found


def write_texts(path: Path, count: int, seed: int) -> Path:
    """A CSV file of such texts."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(("text", "label"))
        writer.writerows(texts(count, seed))
    return path


def model(*, backwards: bool = False, steps: int = _STEPS) -> TextClassifier:
    """The classifier, trained for a second or two; ``backwards``: with the other tokenizer."""
    data = tokenizer(backwards=backwards)
    size = EncoderSize(
        vocabulary=len(SPECIAL) + len(COMMON) + 18, channels=24, layers=2, heads=2, inner=48, positions=32
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        found = TextClassifier(size, classes=3, tokenizer=data, max_tokens=TOKENS, class_names=tuple(TOPICS))
        preprocessing, blobs = text_input(data, max_tokens=TOKENS)
        prepare = preparer_of(preprocessing, (2, TOKENS), blobs.__getitem__).prepare
        known = texts(600, 1)
        inputs = torch.from_numpy(prepare([text for text, _ in known]))
        labels = torch.tensor([list(TOPICS).index(label) for _, label in known])
        optimizer = torch.optim.Adam(found.parameters(), lr=5e-3)
        for _ in range(steps):
            some = torch.randint(0, len(labels), (48,))
            optimizer.zero_grad()
            functional.cross_entropy(4 * found(inputs[some]), labels[some]).backward()
            optimizer.step()
        with torch.no_grad():
            found.classifier.weight *= 4
            found.classifier.bias *= 4
    return found.eval().requires_grad_(False)


def other() -> TextClassifier:
    """The same, of other tokens and longer trained: what a server answers with."""
    return model(backwards=True, steps=2 * _STEPS)
