"""The input of a model of texts: its tokenizer as a blob of the bundle, and how texts become tokens."""

from __future__ import annotations

import hashlib
from pathlib import Path

from torch import Tensor, nn

from device_sdk.data.kinds.texts import (
    ID_ROW,
    MASK_ROW,
    MAX_TOKENIZER_BYTES,
    MAX_TOKENS,
    TextPreprocessing,
    TextTokenizer,
)
from device_sdk.errors import InputError
from packager.errors import ModelLoadError

_HINT = "give the model's tokenizer.json, as Hugging Face's library writes it"


def text_input(
    tokenizer: Path | str | bytes, *, max_tokens: int, type_ids: bool = False
) -> tuple[TextPreprocessing, dict[str, bytes]]:
    """The preprocessing for a ``tokenizer.json``, a file or its bytes, and the blob that it names.

    Raises:
        ModelLoadError: the file is missing, too large or no tokenizer, or no such number of tokens.
        MissingExtraError: the library is not installed.
    """
    data = tokenizer if isinstance(tokenizer, bytes) else _read(Path(tokenizer))
    if not 0 < len(data) <= MAX_TOKENIZER_BYTES:
        raise ModelLoadError(f"the tokenizer has {len(data)} bytes; 1 to {MAX_TOKENIZER_BYTES} are taken", hint=_HINT)
    if not 2 <= max_tokens <= MAX_TOKENS:
        raise ModelLoadError(f"the model takes {max_tokens} tokens; 2 to {MAX_TOKENS} are supported")
    try:
        pad_id = TextTokenizer(data, max_tokens=max_tokens).pad_id
    except InputError as error:
        raise ModelLoadError(str(error), hint=_HINT) from error
    name = hashlib.sha256(data).hexdigest()
    return TextPreprocessing(name, len(data), max_tokens, pad_id, type_ids), {name: data}


class FromRows(nn.Module):
    """A text classifier that takes its tensors by name, as one of rows: int64 [n, 2 or 3, t] → logits [n, classes].

    ``module``: takes ``input_ids``, ``attention_mask`` and, with ``type_ids``, ``token_type_ids``, each [n, t], and
    answers with logits, or with an object that has them. It is cut best where its mask is a float tensor, as with
    ``attn_implementation="eager"`` of Hugging Face's library.
    """

    def __init__(self, module: nn.Module, *, type_ids: bool = False) -> None:
        super().__init__()
        self.module, self.type_ids = module, type_ids

    def forward(self, rows: Tensor) -> Tensor:
        """See the class."""
        named = {"input_ids": rows[:, ID_ROW], "attention_mask": rows[:, MASK_ROW]}
        if self.type_ids:
            named["token_type_ids"] = rows[:, MASK_ROW + 1]
        answer = self.module(**named)
        return answer if isinstance(answer, Tensor) else answer.logits


class TokensFromRows(FromRows):
    """The same of a model that classifies tokens: int64 [n, 2 or 3, t] → logits [n, classes, t], 0 for padding."""

    def forward(self, rows: Tensor) -> Tensor:
        """See the class."""
        present = rows[:, MASK_ROW].unsqueeze(-1).float()  # at once: integers cross no cut point
        return (super().forward(rows) * present).transpose(1, 2)


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            raise ModelLoadError(f"{path} has more than {MAX_TOKENIZER_BYTES} bytes", hint=_HINT)
        return path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"the tokenizer {path} cannot be read: {error.strerror}", hint=_HINT) from error
