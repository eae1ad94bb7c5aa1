"""Digests of tensors, for comparing models and their states."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch


def tensors_digest(tensors: Mapping[str, torch.Tensor]) -> str:
    """SHA-256 of names and values."""
    digest = hashlib.sha256()
    for name, tensor in tensors.items():
        digest.update(name.encode() + tensor.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
