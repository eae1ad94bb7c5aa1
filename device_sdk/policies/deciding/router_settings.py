"""Settings for fitting routers."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class RouterSettings:
    """Settings for fitting a router.

    ``penalties``: of the regression on all meta-features, in samples, the largest first; at the first, infinity, only
    the entropy counts. ``neurons``: of each of the networks that correct the regression, one per fold. ``patience``:
    epochs without a lower loss; ``decay``: of the weights, per step. ``gain_weight``: W_r of samples about which
    asking gains.
    """

    penalties: tuple[float, ...] = (math.inf, 1e4, 3e3, 1e3, 3e2, 1e2)
    neurons: tuple[int, int] = (8, 8)
    learning_rate: float = 2e-3
    decay: float = 1.0
    batch: int = 256
    most_epochs: int = 40
    patience: int = 5
    gain_weight: float = 3.0
    seed: int = 0
