"""A small model that names what words are, with its tokenizer, and tagged texts that it knows: for tests."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from device_sdk.data.kinds import preparer_of
from device_sdk.data.kinds.texts import TextTokenizer
from device_sdk.data.targets import load_tags
from packager.inputs.text_input import text_input
from tests.packager.small_texts import COMMON, TOPICS, tokenizer

TOKENS = 24
TAGS = ("O", "B-food", "I-food", "B-sky", "I-sky", "B-sport", "I-sport")
_STEPS = 150


def tagged(count: int, seed: int) -> list[list[tuple[str, str]]]:
    """Texts of 5 to 30 words with names of one to three words among common ones."""
    chance, found = random.Random(seed), []
    for _ in range(count):
        words: list[tuple[str, str]] = []
        while len(words) < chance.randint(5, 28):
            words += [(chance.choice(COMMON), "O") for _ in range(chance.randint(1, 4))]
            topic = chance.choice(list(TOPICS))
            names = [chance.choice(TOPICS[topic]) for _ in range(chance.randint(1, 3))]
            words += [(name, f"{'I' if at else 'B'}-{topic}") for at, name in enumerate(names)]
        found.append(words)
    return found


def write_tags(path: Path, count: int, seed: int) -> Path:
    """Such texts in the columns of CoNLL."""
    texts = ("\n".join(f"{word} -X- {tag}" for word, tag in text) for text in tagged(count, seed))
    path.write_text("-DOCSTART- -X- O\n\n" + "\n\n".join(texts) + "\n", encoding="utf-8")
    return path


def write_folder(folder: Path, known: Path) -> Path:
    """A folder of Hugging Face with a BERT of two layers, trained on the texts of ``known`` for seconds."""
    transformers: Any = __import__("transformers")
    config = transformers.BertConfig(
        vocab_size=64,
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=48,
        max_position_embeddings=TOKENS,
        id2label=dict(enumerate(TAGS)),
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    data = tokenizer()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = transformers.BertForTokenClassification(config)
        preprocessing, blobs = text_input(data, max_tokens=TOKENS)
        texts = load_tags(str(known), TAGS, TextTokenizer(data, max_tokens=TOKENS), TOKENS)
        inputs = torch.from_numpy(preparer_of(preprocessing, (2, TOKENS), blobs.__getitem__).prepare(texts.samples))
        labels = torch.from_numpy(texts.labels)
        optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
        for _ in range(_STEPS):
            some = torch.randint(0, len(labels), (48,))
            logits = model(input_ids=inputs[some, 0], attention_mask=inputs[some, 1]).logits
            optimizer.zero_grad()
            functional.cross_entropy(logits.transpose(1, 2), labels[some], ignore_index=-1).backward()
            optimizer.step()
    model.eval().save_pretrained(folder)
    (folder / "tokenizer.json").write_bytes(data)
    return folder
