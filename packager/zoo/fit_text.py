"""``python -m packager.zoo.fit_text``: a text encoder and labelled texts become a classifier, ready to be packaged.

The encoder stays as it is. The classifier on its embeddings is a multinomial logistic regression.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from device_sdk.data.kinds.text_files import load_texts
from device_sdk.data.kinds.texts import Encoded, TextPreprocessing, TextTokenizer, padded
from device_sdk.errors import PathweaveError
from packager.tasks.logistic_regression import logistic_regression
from packager.zoo.text_encoder import TextClassifier
from packager.zoo.text_folder import TextFolder

_BATCH = 64
_DECAY = 1e-5
_LEAST_LENGTH = 8


def embeddings(module: TextClassifier, encoded: Sequence[Encoded]) -> Tensor:
    """Embeddings [count, channels] of texts, each batch padded to its longest."""
    order = np.argsort([len(one.ids) for one in encoded], kind="stable")
    found = torch.empty(len(encoded), module.classifier.in_features)
    shape = TextPreprocessing("", 1, module.max_tokens)
    with torch.inference_mode():
        for at in range(0, len(order), _BATCH):
            some = [encoded[position] for position in order[at : at + _BATCH]]
            length = max(_LEAST_LENGTH, *(len(one.ids) for one in some))
            found[order[at : at + _BATCH]] = module.embed(torch.from_numpy(padded(some, shape, (length,))))
    return found


def fit_classifier(module: TextClassifier, found: Tensor, labels: Tensor, *, decay: float = _DECAY) -> None:
    """Fit the classifier of ``module`` to embeddings [count, channels] and labels int64 [count]."""
    hot = functional.one_hot(labels, module.classifier.out_features).to(found.dtype)
    weight, bias = logistic_regression(found, hot, penalty=decay)
    with torch.no_grad():
        module.classifier.weight.copy_(weight)
        module.classifier.bias.copy_(bias)


def fit_text(encoder: Path, data: str, out: Path, *, max_tokens: int) -> tuple[TextClassifier, float]:
    """Fit a classifier of the texts at ``data`` on ``encoder``, and write both to the folder ``out``.

    Returns: the classifier, and its accuracy on the texts that it was fitted to.

    Raises:
        ModelLoadError, WeightsError, DataError, StorageError: an input cannot be used, or ``out`` not be written.
    """
    texts = load_texts(data, limit=None, labelled=True)
    folder = TextFolder.read(encoder)
    module = folder.classifier(texts.class_names, max_tokens)
    found = embeddings(module, TextTokenizer(folder.tokenizer, max_tokens=max_tokens).encode(texts.samples)).clone()
    labels = torch.from_numpy(texts.labels)
    fit_classifier(module, found, labels)
    folder.with_classifier(module).write(out)
    with torch.no_grad():
        right = (module.classifier(found).argmax(1) == labels).float().mean()
    return module, float(right)


@click.command()
@click.option("--encoder", type=click.Path(path_type=Path), required=True, help="Folder or zip of a BERT encoder.")
@click.option("--data", required=True, help="Labelled texts: .csv, .tsv, .jsonl or a folder, perhaps #part.")
@click.option("--max-tokens", type=click.IntRange(min=8), default=64, show_default=True, help="Tokens of a text.")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="Folder for the classifier.")
def main(encoder: Path, data: str, max_tokens: int, out: Path) -> None:
    """Fit a classifier on a text encoder; package it with --model bert:OUT."""
    try:
        module, right = fit_text(encoder, data, out, max_tokens=max_tokens)
    except PathweaveError as error:
        raise click.ClickException(str(error)) from error
    click.echo(f"{out}: {len(module.class_names or ())} classes, {right:.1%} of these texts right")


if __name__ == "__main__":
    main()
