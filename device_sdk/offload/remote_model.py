"""A model at a server, and the privacy setting for it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Literal, get_args

from device_sdk.data.jpeg import QUALITY, check_quality
from device_sdk.errors import UsageError
from device_sdk.offload.pooling import LogarithmicPool

Privacy = Literal["never", "activations", "inputs"]

MAX_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """A model at a server, and what may be sent to it.

    ``server``: the URL before ``/v2``. ``privacy``: ``never`` sends nothing, ``activations`` sends intermediate
    activations, ``inputs`` also the samples themselves. ``timeout_s``: for all samples of a call together.
    ``max_batch``: samples per request. ``jpeg_quality``: 1 to 95, for a model that takes JPEGs (``NAME:jpeg``); the
    accuracy of a plan holds for the quality with which it was measured. ``pool``: how its answers to hard samples are
    pooled with the device's own; None: they replace them. ``share``: of the samples that reach the end of a plan that
    asks, kept by moving its decider's limit (``asked_share``); None: the limit stays.

    Raises:
        UsageError: a value is out of range.
    """

    server: str
    model: str
    token: str | None = field(default=None, repr=False)
    privacy: Privacy = "never"
    timeout_s: float = 1.0
    max_batch: int = 64
    jpeg_quality: int = QUALITY
    pool: LogarithmicPool | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if not self.server or not self.model:
            raise UsageError("a remote model needs a server and the name of a model there")
        if self.privacy not in get_args(Privacy):
            raise UsageError(
                f"there is no privacy setting {self.privacy!r}", hint="known: " + ", ".join(get_args(Privacy))
            )
        if not (math.isfinite(self.timeout_s) and 0 < self.timeout_s <= MAX_TIMEOUT_S):
            raise UsageError(f"timeout_s is {self.timeout_s}; it must be above 0 and at most {MAX_TIMEOUT_S:.0f}")
        if self.share is not None and not 0 <= self.share <= 1:
            raise UsageError(f"the share {self.share:g} is not between 0 and 1")
        check_quality(self.jpeg_quality)
        if self.max_batch < 1:
            raise UsageError(f"max_batch is {self.max_batch}; it must be at least 1")
