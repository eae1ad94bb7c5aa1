"""Texts: token ids of a tokenizer that the bundle carries, padded or cut to the model's length.

Shape legend: texts n, rows r, tokens t. A prepared batch is int64 [n, r, t]: row 0 the token ids, row 1 the attention
mask (1 for a token, 0 for padding, which comes last), row 2, where the model takes it, token type ids, all 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.data.kinds.port import Array, ReadBlob
from device_sdk.data.preprocessing import AnyPreprocessing
from device_sdk.errors import InputError
from device_sdk.extras import require

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MAX_TOKENS = 8_192
MAX_TOKENIZER_BYTES = 64_000_000
ID_ROW, MASK_ROW = 0, 1
_CHARACTERS_PER_TOKEN = 64  # a text's characters beyond so many for each token that the model takes are not read
_TOGETHER = 256  # texts that are tokenized at once

Tokens = npt.NDArray[np.int64]
Places = npt.NDArray[np.int64]


class TextPreprocessing(msgspec.Struct, AnyPreprocessing, frozen=True, tag_field="kind", tag="text"):
    """A text's tokens: of a Hugging Face ``tokenizer.json``, special tokens included.

    ``tokenizer``: sha256 of the blob with that file, ``tokenizer_bytes`` long. A text of more than ``max_tokens``
    tokens keeps the first ``max_tokens`` − 1 and the last one, which ends it; a shorter one is padded with ``pad_id``
    at its end. The model's only input is int64 [rows, max_tokens]: token ids, attention mask and, with ``type_ids``,
    zeros.

    Raises:
        ValueError: a value is out of range (msgspec turns it into a validation error when decoding).
    """

    tokenizer: str
    tokenizer_bytes: Annotated[int, msgspec.Meta(ge=1, le=MAX_TOKENIZER_BYTES)]
    max_tokens: Annotated[int, msgspec.Meta(ge=2, le=MAX_TOKENS)]
    pad_id: Annotated[int, msgspec.Meta(ge=0, lt=2**31)] = 0
    type_ids: bool = False

    @property
    def rows(self) -> int:
        """Rows of the model's input."""
        return 3 if self.type_ids else 2

    def blobs(self) -> dict[str, int]:
        """See ``AnyPreprocessing``."""
        return {self.tokenizer: self.tokenizer_bytes}

    def accepts(self, shape: tuple[int, ...], dtype: str) -> bool:
        """See ``AnyPreprocessing``."""
        return shape == (self.rows, self.max_tokens) and dtype == "int64"


@dataclass(frozen=True)
class Encoded:
    """Token ids of a text, at most as many as the model takes. ``cut``: it has more; ``unknown``: unknown ones."""

    ids: Tokens
    cut: bool
    unknown: int


class TextTokenizer:
    """A ``tokenizer.json`` in use, for models of at most ``max_tokens``. Thread-safe.

    Raises:
        MissingExtraError: the library is not installed.
        InputError: the file is no tokenizer that the library reads.
    """

    def __init__(self, data: bytes, *, max_tokens: int) -> None:
        self._max_tokens = max_tokens
        self._tokenizer = _opened(data)
        self._unknown = _unknown_id(self._tokenizer)

    def encode(self, texts: Sequence[str]) -> list[Encoded]:
        """The token ids of each text."""
        found: list[Encoded] = []
        most = _CHARACTERS_PER_TOKEN * self._max_tokens
        for at in range(0, len(texts), _TOGETHER):
            some = self._tokenizer.encode_batch([text[:most] for text in texts[at : at + _TOGETHER]])
            found += [self._limited(np.array(one.ids, dtype=np.int64)) for one in some]
        return found

    def places(self, texts: Sequence[str]) -> list[Places]:
        """For each text int64 [tokens, 2]: first character of each token and the one behind it, equal for marks.

        As many as ``encode`` has: the last token of a text that is cut is the mark that ends it.
        """
        most = _CHARACTERS_PER_TOKEN * self._max_tokens
        found = self._tokenizer.encode_batch([text[:most] for text in texts])
        return [self._limited_places(one.offsets, one.special_tokens_mask) for one in found]

    def _limited_places(self, offsets: Sequence[tuple[int, int]], marks: Sequence[int]) -> Places:
        places = np.array(offsets, dtype=np.int64).reshape(-1, 2)
        places[np.array(marks, dtype=bool)] = 0
        if len(places) > self._max_tokens:
            places = np.concatenate([places[: self._max_tokens - 1], places[-1:]])
        return places

    @property
    def pad_id(self) -> int:
        """The id of the padding token; 0 for a tokenizer without one."""
        return next(
            (found for name in ("[PAD]", "<pad>") if (found := self._tokenizer.token_to_id(name)) is not None), 0
        )

    @property
    def size(self) -> int:
        """Tokens in the vocabulary, added ones included."""
        return int(self._tokenizer.get_vocab_size(with_added_tokens=True))

    def _limited(self, ids: Tokens) -> Encoded:
        unknown = 0 if self._unknown is None else int((ids == self._unknown).sum())
        if len(ids) <= self._max_tokens:
            return Encoded(ids, False, unknown)
        return Encoded(np.append(ids[: self._max_tokens - 1], ids[-1]), True, unknown)


def _opened(data: bytes) -> Tokenizer:
    tokenizers = require("tokenizers", extra="text")
    try:
        found = tokenizers.Tokenizer.from_str(data.decode("utf-8"))
    except Exception as error:  # the library raises plain exceptions
        reason = (str(error).splitlines() or [""])[0][:200]
        raise InputError(f"the tokenizer cannot be read: {reason}", hint="take the model's tokenizer.json") from error
    found.no_truncation()
    found.no_padding()
    return found


def _unknown_id(tokenizer: Tokenizer) -> int | None:
    """The id of unknown tokens; None where every text has known ones."""
    name = getattr(tokenizer.model, "unk_token", None)
    found = tokenizer.token_to_id(name) if isinstance(name, str) else getattr(tokenizer.model, "unk_id", None)
    return found if isinstance(found, int) else None


class TextPreparer:
    """Texts for a model with this preprocessing; see the port. The tokenizer is read at the first text."""

    names = "texts"

    def __init__(self, preprocessing: TextPreprocessing, shape: tuple[int, ...], read_blob: ReadBlob) -> None:
        self._preprocessing = preprocessing
        self._read_blob = read_blob

    @cached_property
    def tokenizer(self) -> TextTokenizer:
        """The bundle's tokenizer."""
        data = self._read_blob(self._preprocessing.tokenizer)
        return TextTokenizer(data, max_tokens=self._preprocessing.max_tokens)

    def is_prepared(self, samples: object) -> bool:
        """See the port."""
        return isinstance(samples, np.ndarray) and samples.dtype.kind in "iu"

    def listed(self, samples: Any) -> Sequence[str]:
        """A text, or several, as a list; none may be empty (InputError)."""
        texts = [samples] if isinstance(samples, str) else samples
        if isinstance(texts, np.ndarray) and texts.dtype.kind in "UO":
            texts = texts.tolist()
        if not isinstance(texts, Sequence) or isinstance(texts, bytes):
            raise InputError(f"expected a text or a list of texts, got {type(samples).__name__}")
        for position, text in enumerate(texts):
            if not isinstance(text, str):
                raise InputError(f"text {position} is a {type(text).__name__}, not a str")
            if not text.strip():
                raise InputError(f"text {position} is empty", hint="leave empty texts out")
        return texts

    def prepare(self, samples: Any, input_size: tuple[int, ...] = ()) -> Array:
        """A text, or several, as int64 [n, r, t]; see the port."""
        return self._padded(self.tokenizer.encode(self.listed(samples)), input_size)

    def inputs(self, samples: Any) -> TextInputs:
        """See the port."""
        return TextInputs(self.tokenizer.encode(self.listed(samples)), self._preprocessing)

    def notes(self, samples: Any) -> tuple[str, ...]:
        """Number of texts that are cut, and of tokens that the model does not know."""
        encoded = self.tokenizer.encode(self.listed(samples))
        cut = sum(one.cut for one in encoded)
        unknown, every = sum(one.unknown for one in encoded), sum(len(one.ids) for one in encoded)
        most = self._preprocessing.max_tokens
        notes = [f"{cut} of {len(encoded)} texts have more than the model's {most} tokens and are cut"] if cut else []
        if unknown:
            notes.append(f"{unknown} of {every} tokens are unknown to the model ({unknown / every:.1%})")
        return tuple(notes)

    def _padded(self, encoded: Sequence[Encoded], input_size: tuple[int, ...]) -> Array:
        return padded(encoded, self._preprocessing, input_size)


class TextInputs:
    """Tokenized texts, padded or cut when their batch is taken."""

    def __init__(self, encoded: Sequence[Encoded], preprocessing: TextPreprocessing) -> None:
        self._encoded, self._preprocessing = encoded, preprocessing

    def __len__(self) -> int:
        return len(self._encoded)

    def take(self, positions: npt.NDArray[np.int64], input_size: tuple[int, ...] = ()) -> Array:
        """See ``Inputs``."""
        return padded([self._encoded[int(at)] for at in positions], self._preprocessing, input_size)

    def subset(self, positions: npt.NDArray[np.int64]) -> TextInputs:
        """See ``Inputs``."""
        return TextInputs([self._encoded[int(at)] for at in positions], self._preprocessing)


def padded(encoded: Sequence[Encoded], preprocessing: TextPreprocessing, input_size: tuple[int, ...] = ()) -> Tokens:
    """Texts as int64 [n, r, t], where t is ``input_size`` or the model's own."""
    (length,) = input_size or (preprocessing.max_tokens,)
    found = np.zeros((len(encoded), preprocessing.rows, length), dtype=np.int64)
    found[:, ID_ROW] = preprocessing.pad_id
    for row, one in zip(found, encoded, strict=True):
        ids = one.ids if len(one.ids) <= length else np.append(one.ids[: length - 1], one.ids[-1])
        row[ID_ROW, : len(ids)], row[MASK_ROW, : len(ids)] = ids, 1
    return found


def lengthened(tokens: Tokens, preprocessing: TextPreprocessing) -> Tokens:
    """Prepared texts [n, r, t] of a shorter length, padded to the model's own."""
    count, rows, length = tokens.shape
    found = np.zeros((count, rows, preprocessing.max_tokens), dtype=np.int64)
    found[:, ID_ROW] = preprocessing.pad_id
    found[:, :, :length] = tokens
    return found
