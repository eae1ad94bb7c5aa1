"""How sure an answer is: what exits and escalation decide by."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from device_sdk.runtimes.port import Array


def confidence(logits: Array) -> npt.NDArray[np.float64]:
    """The highest softmax probability of each sample: logits [batch, classes] -> [batch], above 0 and at most 1."""
    wide = logits.astype(np.float64)
    powers = np.exp(wide - wide.max(axis=1, keepdims=True))
    return np.asarray(1.0 / powers.sum(axis=1))
