"""Answers of one source to many images: the device's network, or a server's."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.plan import Plan

Logits = npt.NDArray[np.float32]


def logits_from(model: AdaptiveModel, plan: Plan, images: npt.NDArray[np.uint8], *, source: str, batch: int) -> Logits:
    """Logits [count, classes] of ``plan``, which stays in use; all of them must come from ``source``."""
    model.use(plan)
    answers = [model(images[at : at + batch]) for at in range(0, len(images), batch)]
    assert all(set(answer.source) == {source} for answer in answers), f"not all answers come from the {source}"
    return np.concatenate([answer.output for answer in answers])
