"""Random inputs for a model before there are real ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from device_sdk.data.kinds.texts import ID_ROW, MASK_ROW, TextPreprocessing, TextTokenizer
from device_sdk.data.preprocessing import AnyPreprocessing

_LEAST_TOKENS = 2


def noise(
    preprocessing: AnyPreprocessing, shape: Sequence[int], blobs: Mapping[str, bytes], *, count: int, seed: int
) -> torch.Tensor:
    """Random samples [count, *shape]: normal numbers, or texts of random tokens and lengths."""
    generator = torch.Generator().manual_seed(seed)
    if not isinstance(preprocessing, TextPreprocessing):
        return torch.randn(count, *shape, generator=generator)
    size = TextTokenizer(blobs[preprocessing.tokenizer], max_tokens=preprocessing.max_tokens).size
    length = shape[-1]
    lengths = torch.randint(_LEAST_TOKENS, length + 1, (count, 1), generator=generator)
    mask = torch.arange(length) < lengths
    found = torch.zeros(count, *shape, dtype=torch.int64)
    ids = torch.randint(0, size, (count, length), generator=generator)
    found[:, ID_ROW] = torch.where(mask, ids, preprocessing.pad_id)
    found[:, MASK_ROW] = mask.long()
    return found
