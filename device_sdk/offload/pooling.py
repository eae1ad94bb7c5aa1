"""Pooled answers: where a server has answered, the device's own answer is at hand too, and both together know more.

Source: logarithmic opinion pools (Genest and Zidek 1986).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from device_sdk.errors import UsageError
from device_sdk.runtimes.port import Array


@dataclass(frozen=True)
class LogarithmicPool:
    """Logits weighed by ``device`` and ``server`` and added: a product of powers of both distributions.

    Each weight holds its network's temperature and how much it counts (``policies/deciding/pool_fitting``).

    Raises:
        UsageError: a weight is negative or not finite, or both are 0.
    """

    device: float
    server: float

    def __post_init__(self) -> None:
        weights = (self.device, self.server)
        if not all(math.isfinite(one) and one >= 0 for one in weights) or not any(weights):
            raise UsageError(
                f"a pool's weights are {self.device:g} and {self.server:g}: none may be below 0, and not both 0"
            )

    def pooled(self, device: Array, server: Array) -> Array:
        """Logits [batch, classes] of both on the same samples -> theirs together, float32 [batch, classes]."""
        found = self.device * device.astype(np.float64) + self.server * server.astype(np.float64)
        return np.asarray(found.astype(np.float32))
