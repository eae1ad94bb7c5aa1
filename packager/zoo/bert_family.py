"""BERT, RoBERTa and DistilBERT as classifiers of texts or tokens, with their mask inside the features.

Texts come as int64 [n, 2, t] (token ids, attention mask). A classifier of texts reads the first token, through one more
layer; one of tokens reads each. Beside a mask, features are two tensors at every cut point, where blocks cannot be
merged, shrunk or quantised (docs/adr/0091). ``first_token_classifier`` and ``token_classifier`` rebuild such a model of
transformers from ``text_encoder``'s parts, where they answer the same.

Sources: Devlin et al., 2019; Liu et al., "RoBERTa", 2019; Sanh et al., "DistilBERT", 2019.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from packager.zoo.text_encoder import PARTS, Embeddings, EncoderSize, Layer, tokens_of

_TOLERANCE = 1e-3  # of the largest logit
_TEXTS, _LONGEST = 3, 24  # that both models answer
_NUMBERED = re.compile(r"(\d+)\.(.+)\.(weight|bias)")
_GELU = "gelu"
_CLASSIFIERS = ("classifier.weight", "classifier.out_proj.weight")


class FirstTokenClassifier(nn.Module):
    """Embeddings, layers, and a classifier of two layers on the first token; ``activation``: between these."""

    def __init__(self, size: EncoderSize, *, classes: int, activation: nn.Module) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.layers = nn.Sequential(*(Layer(size) for _ in range(size.layers)))
        self.dense = nn.Linear(size.channels, size.channels)
        self.activation = activation
        self.classifier = nn.Linear(size.channels, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """See the module."""
        hidden = self.layers(self.embeddings(tokens))
        return self.classifier(self.activation(self.dense(hidden[:, 0])))


class TokenClassifier(nn.Module):
    """Embeddings, layers, and a linear classifier of each token: logits [n, classes, t], 0 for padding."""

    def __init__(self, size: EncoderSize, *, classes: int) -> None:
        super().__init__()
        self.embeddings = Embeddings(size)
        self.layers = nn.Sequential(*(Layer(size) for _ in range(size.layers)))
        self.classifier = nn.Linear(size.channels, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """See the module."""
        hidden = self.layers(self.embeddings(tokens))
        return (self.classifier(hidden) * tokens_of(hidden)).transpose(1, 2)


@dataclass(frozen=True)
class _Names:
    """Names in a model of transformers: the prefix of its layers, and the owners of its tensors."""

    layers: str
    parts: Mapping[str, str]  # of a layer, theirs and ours
    others: Mapping[str, str]
    activation: type[nn.Module]
    first_position: int = 0  # of the table, whose rows before are not for tokens


_DISTILLED_PARTS = {
    "attention.q_lin": "attention.query",
    "attention.k_lin": "attention.key",
    "attention.v_lin": "attention.value",
    "attention.out_lin": "attention.output",
    "sa_layer_norm": "attention.norm",
    "ffn.lin1": "feed_forward.inner",
    "ffn.lin2": "feed_forward.outer",
    "output_layer_norm": "feed_forward.norm",
}


def first_token_classifier(model: nn.Module, config: Mapping[str, Any]) -> FirstTokenClassifier | None:
    """``model``, of transformers, with its mask inside the features; None if it is of another kind.

    ``config``: the content of its config.json. Tensors are compared by name and shape, and both models on random texts.
    """

    def make(size: EncoderSize, classes: int, names: _Names) -> FirstTokenClassifier:
        return FirstTokenClassifier(size, classes=classes, activation=names.activation())

    return _rebuilt(model, config, _names(config), make)


def token_classifier(model: nn.Module, config: Mapping[str, Any]) -> TokenClassifier | None:
    """As ``first_token_classifier``, of a model that classifies each token."""
    names = _names(config)
    if names is not None:  # one layer on top, and none before it
        others = {theirs: own for theirs, own in names.others.items() if own.startswith("embeddings.")}
        names = replace(names, others=others | {"classifier": "classifier"})
    return _rebuilt(model, config, names, lambda size, classes, _: TokenClassifier(size, classes=classes))


_Made = TypeVar("_Made", FirstTokenClassifier, TokenClassifier)


def _rebuilt(
    model: nn.Module, config: Mapping[str, Any], names: _Names | None, make: Callable[[EncoderSize, int, _Names], _Made]
) -> _Made | None:
    size = _size(config, 0 if names is None else names.first_position)
    if names is None or size is None:
        return None
    state = model.state_dict()
    classifier = next((state[name] for name in _CLASSIFIERS if name in state), None)
    if classifier is None:
        return None
    made = make(size, int(classifier.shape[0]), names)
    try:
        made.load_state_dict(_renamed(state, names))
    except (KeyError, RuntimeError):  # a variant with other tensors
        return None
    made.eval().requires_grad_(False)
    for norm in (one for one in made.modules() if isinstance(one, nn.LayerNorm)):
        norm.eps = float(config.get("layer_norm_eps", norm.eps))
    return made if _agree(model, made, size, int(config.get("pad_token_id") or 0)) else None


def _names(config: Mapping[str, Any]) -> _Names | None:
    kind = config.get("model_type")
    if kind == "distilbert":
        owners = _owners("distilbert") | {"pre_classifier": "dense", "classifier": "classifier"}
        return _Names("distilbert.transformer.layer.", _DISTILLED_PARTS, owners, nn.ReLU)
    if kind == "bert":
        owners = _owners("bert") | {"bert.pooler.dense": "dense", "classifier": "classifier"}
        return _Names("bert.encoder.layer.", PARTS, owners, nn.Tanh)
    if kind in ("roberta", "xlm-roberta", "camembert"):
        owners = _owners("roberta") | {"classifier.dense": "dense", "classifier.out_proj": "classifier"}
        first = 1 + int(config.get("pad_token_id", 1))
        return _Names("roberta.encoder.layer.", PARTS, owners, nn.Tanh, first)
    return None


def _owners(prefix: str) -> dict[str, str]:
    return {
        f"{prefix}.embeddings.word_embeddings": "embeddings.words",
        f"{prefix}.embeddings.position_embeddings": "embeddings.positions",
        f"{prefix}.embeddings.token_type_embeddings": "embeddings.kind",
        f"{prefix}.embeddings.LayerNorm": "embeddings.norm",
    }


def _size(config: Mapping[str, Any], first_position: int) -> EncoderSize | None:
    """The sizes of the encoder; None for one that differs in more than sizes."""

    def number(*names: str) -> int:
        return next((int(config[name]) for name in names if isinstance(config.get(name), int)), 0)

    activation = config.get("hidden_act", config.get("activation", _GELU))
    positions = config.get("position_embedding_type", "absolute")
    if (activation, positions) != (_GELU, "absolute") or config.get("is_decoder"):
        return None
    size = EncoderSize(
        vocabulary=number("vocab_size"),
        channels=number("hidden_size", "dim"),
        layers=number("num_hidden_layers", "n_layers"),
        heads=number("num_attention_heads", "n_heads"),
        inner=number("intermediate_size", "hidden_dim"),
        positions=number("max_position_embeddings") - first_position,
    )
    whole = min(size.vocabulary, size.channels, size.layers, size.heads, size.inner, size.positions) > 0
    return size if whole and size.channels % size.heads == 0 else None


def _renamed(state: Mapping[str, Tensor], names: _Names) -> dict[str, Tensor]:
    """The tensors as ``FirstTokenClassifier`` names them. Raises KeyError for one that it has no place for."""
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        if name.endswith((".position_ids", ".token_type_ids")):  # counted again
            continue
        if name.startswith(names.layers):
            numbered = _NUMBERED.fullmatch(name.removeprefix(names.layers))
            number, part, kind = numbered.groups() if numbered else ("", name, "")
            found[f"layers.{number}.{names.parts[part]}.{kind}"] = value
            continue
        owner, _, kind = name.rpartition(".")
        own = names.others[owner]
        if own == "embeddings.kind":
            found[own] = value[0]
        elif own == "embeddings.positions":
            found[f"{own}.{kind}"] = value[names.first_position :]
        else:
            found[f"{own}.{kind}"] = value
    found.setdefault("embeddings.kind", torch.zeros_like(found["embeddings.norm.bias"]))
    return found


def _agree(model: nn.Module, made: nn.Module, size: EncoderSize, pad_id: int) -> bool:
    """True if both answer random texts of several lengths alike."""
    tokens = min(_LONGEST, size.positions)
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, size.vocabulary, (_TEXTS, tokens), generator=random)
    lengths = torch.tensor([tokens, max(1, tokens // 2), max(1, tokens // 5)])
    mask = (torch.arange(tokens) < lengths[:, None]).long()
    ids = torch.where((mask == 0) | (ids == pad_id), pad_id * (1 - mask) + (pad_id + 1) % size.vocabulary * mask, ids)
    with torch.no_grad():
        wanted = model(input_ids=ids, attention_mask=mask).logits
        found = made(torch.stack([ids, mask], dim=1))
    if wanted.dim() == found.dim() == 3:  # of tokens, of which padding has none
        wanted = (wanted * mask.unsqueeze(-1)).transpose(1, 2)
    return bool((wanted - found).abs().max() <= _TOLERANCE * wanted.abs().max().clamp_min(1e-6))
