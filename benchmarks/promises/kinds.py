"""A kind of limit, and the outcome of one choice under it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Places = npt.NDArray[np.intp]
CERTAINTY = 0.9


@dataclass(frozen=True)
class Tried:
    """One choice, judged on new samples. ``saved``: a share of what doing nothing costs, or accuracy that is gained."""

    kept: bool
    saved: float
    refused: bool = False


REFUSED = Tried(kept=True, saved=0.0, refused=True)  # nothing was promised


@dataclass(frozen=True)
class Kind:
    """A kind of limit. ``tried``: given the places of the samples that choose and of those that judge."""

    name: str
    tried: Callable[[Places, Places], Tried]
    chosen_on: int = 500
    stated: float = CERTAINTY
