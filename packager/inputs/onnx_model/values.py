"""Values that flow between the nodes of an ONNX graph while it is imported.

A ``Host`` is a single constant, or a small array that shapes are computed with: a numpy array of Python numbers or
torch's symbolic sizes. Everything else is a torch tensor. So an exported network has sizes where the ONNX graph has
tensors.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Host: TypeAlias = npt.NDArray[np.object_]
Value: TypeAlias = Tensor | Host

MOST_HOST = 64  # numbers of a constant; larger ones are data


class UnsupportedOperatorError(Exception):
    """An operator, or a form of one, has no import; the message says which."""


def host(values: Iterable[Any], *, scalar: bool = False) -> Host:
    """Numbers as a host value of one axis, or the only one of them without an axis."""
    listed = list(values)
    made = np.empty(() if scalar else (len(listed),), dtype=object)
    if scalar:
        made[()] = listed[0]
    else:
        made[:] = listed
    return made


def is_host(value: object) -> bool:
    """True for a host value."""
    return isinstance(value, np.ndarray)


def tensor(value: Value) -> Tensor:
    """The value as a tensor; integers are int64."""
    if isinstance(value, Tensor):
        return value
    flat = value.reshape(-1).tolist()
    if any(isinstance(number, torch.SymInt) for number in flat):
        return torch.stack([torch.scalar_tensor(number, dtype=torch.int64) for number in flat]).reshape(value.shape)
    kind = torch.int64
    if flat and all(isinstance(number, bool) for number in flat):
        kind = torch.bool
    elif any(isinstance(number, float) for number in flat):
        kind = torch.float32
    return torch.tensor(flat, dtype=kind).reshape(value.shape)


def numbers(value: Value, what: str) -> list[Any]:
    """The numbers of a host value.

    Raises:
        UnsupportedOperatorError: they are computed from the input; ``what`` names them.
    """
    if isinstance(value, Tensor):
        raise UnsupportedOperatorError(f"{what} computed from the values of the input")
    return list(value.reshape(-1).tolist())


def known_value(value: Tensor) -> Value:
    """A constant as a host value if it is a single number or a few integers, else as the tensor."""
    if value.dim() == 0:
        return host([value.item()], scalar=True)
    whole = not value.is_floating_point() and value.dtype is not torch.bool
    if value.dim() == 1 and whole and value.numel() <= MOST_HOST:
        return host(value.tolist())
    return value
