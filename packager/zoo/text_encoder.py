"""A BERT encoder with a classifier on its mean: texts as int64 [n, 2, t] (token ids, attention mask) → logits.

Shape legend: texts n, tokens t, channels c, heads h. Between its layers one tensor is live, [n, t, c], in which padding
is zero: each layer tells tokens from padding by that (docs/adr/0091-kinds-of-samples.md). Nothing names the number of
tokens, so that the layers run at every length.

Source: Devlin et al., "BERT: Pre-training of Deep Bidirectional Transformers", 2019; weights as Hugging Face names
them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

_MASKED = 1e4  # taken off the scores of padding
_LAYER = re.compile(r"encoder\.layer\.(\d+)\.(.+)")
PARTS = {  # of a layer, as Hugging Face names them, and here
    "attention.self.query": "attention.query",
    "attention.self.key": "attention.key",
    "attention.self.value": "attention.value",
    "attention.output.dense": "attention.output",
    "attention.output.LayerNorm": "attention.norm",
    "intermediate.dense": "feed_forward.inner",
    "output.dense": "feed_forward.outer",
    "output.LayerNorm": "feed_forward.norm",
}


@dataclass(frozen=True)
class EncoderSize:
    """Sizes of an encoder: vocabulary, channels, layers, heads, channels inside feed-forward layers, positions."""

    vocabulary: int = 30_522
    channels: int = 384
    layers: int = 6
    heads: int = 12
    inner: int = 1_536
    positions: int = 512


def tokens_of(hidden: Tensor) -> Tensor:
    """1 for each token of [n, t, c] and 0 for padding: [n, t, 1]."""
    return (hidden.abs().amax(-1, keepdim=True) > 0).to(hidden.dtype)


class Embeddings(nn.Module):
    """Token ids and attention mask, int64 [n, 2, t] → [n, t, c], zero for padding."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.words = nn.Embedding(size.vocabulary, size.channels)
        self.positions = nn.Embedding(size.positions, size.channels)
        self.kind = nn.Parameter(torch.zeros(size.channels))  # of the first, the only, text
        self.norm = nn.LayerNorm(size.channels, eps=1e-12)

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class."""
        ids, mask = tokens[:, 0], tokens[:, 1]
        at = (mask.cumsum(1) - 1).clamp(min=0)
        found = self.norm(self.words(ids) + self.positions(at) + self.kind)
        return found * mask.unsqueeze(-1).to(found.dtype)


class Attention(nn.Module):
    """Self-attention with residual and norm: [n, t, c] → the same shape."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.query, self.key, self.value, self.output = (nn.Linear(size.channels, size.channels) for _ in range(4))
        self.norm = nn.LayerNorm(size.channels, eps=1e-12)

    def forward(self, hidden: Tensor) -> Tensor:
        """See the class."""
        present = tokens_of(hidden)
        scores = (present.transpose(1, 2).unsqueeze(1) - 1) * _MASKED  # [n, 1, 1, t]
        query, key, value = (self._split(part(hidden)) for part in (self.query, self.key, self.value))
        # not scaled_dot_product_attention, whose export names the number of tokens
        shares = (query @ key.transpose(2, 3) * query.shape[-1] ** -0.5 + scores).softmax(-1)  # [n, h, t, t]
        mixed = (shares @ value).transpose(1, 2).flatten(2)
        return self.norm(hidden + self.output(mixed)) * present

    def _split(self, values: Tensor) -> Tensor:
        """[n, t, c] → [n, h, t, c / h]."""
        return values.view(values.shape[0], -1, self.heads, values.shape[2] // self.heads).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with residual and norm: [n, t, c] → the same shape."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.inner = nn.Linear(size.channels, size.inner)
        self.outer = nn.Linear(size.inner, size.channels)
        self.norm = nn.LayerNorm(size.channels, eps=1e-12)

    def forward(self, hidden: Tensor) -> Tensor:
        """See the class."""
        return self.norm(hidden + self.outer(functional.gelu(self.inner(hidden)))) * tokens_of(hidden)


class Layer(nn.Module):
    """Attention, then feed-forward."""

    def __init__(self, size: EncoderSize) -> None:
        super().__init__()
        self.attention, self.feed_forward = Attention(size), FeedForward(size)

    def forward(self, hidden: Tensor) -> Tensor:
        """[n, t, c] → the same shape."""
        return self.feed_forward(self.attention(hidden))


class TextClassifier(nn.Module):
    """Encoder, mean over the tokens, unit length, linear classifier: int64 [n, 2, t] → logits [n, classes].

    ``tokenizer`` and ``max_tokens``: as the packager's loader takes them from a user's module.
    """

    def __init__(
        self,
        size: EncoderSize,
        *,
        classes: int,
        tokenizer: Path | bytes,
        max_tokens: int = 128,
        class_names: Sequence[str] | None = None,
    ) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.layers = nn.Sequential(*(Layer(size) for _ in range(size.layers)))
        self.classifier = nn.Linear(size.channels, classes)
        self.tokenizer, self.max_tokens = tokenizer, max_tokens
        self.class_names = None if class_names is None else tuple(class_names)

    def embed(self, tokens: Tensor) -> Tensor:
        """Int64 [n, 2, t] → embeddings of unit length [n, c]."""
        hidden = self.layers(self.embeddings(tokens))
        mean = hidden.sum(1) / tokens_of(hidden).sum(1).clamp(min=1)
        return mean / mean.square().sum(-1, keepdim=True).clamp(min=1e-12).sqrt()

    def forward(self, tokens: Tensor) -> Tensor:
        """See the class."""
        return self.classifier(self.embed(tokens))

    def load_encoder(self, weights: Mapping[str, Tensor]) -> None:
        """Take the encoder's weights, as Hugging Face names those of a BertModel; its pooler is left out.

        Raises:
            KeyError, RuntimeError: a weight is missing, or has another shape.
        """
        own = {
            "embeddings.words.weight": weights["embeddings.word_embeddings.weight"],
            "embeddings.positions.weight": weights["embeddings.position_embeddings.weight"],
            "embeddings.kind": weights["embeddings.token_type_embeddings.weight"][0],
            "embeddings.norm.weight": weights["embeddings.LayerNorm.weight"],
            "embeddings.norm.bias": weights["embeddings.LayerNorm.bias"],
        }
        for name, value in weights.items():
            found = _LAYER.fullmatch(name)
            if found is not None:
                part, _, kind = found[2].rpartition(".")
                own[f"layers.{found[1]}.{PARTS[part]}.{kind}"] = value
        self.load_state_dict(own | {name: value for name, value in self.state_dict().items() if "classifier" in name})
