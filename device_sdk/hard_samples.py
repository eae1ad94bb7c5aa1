"""Who answers each sample of a batch: the plan's exits, the end of its subnet, or the server for the hard ones."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.adaptation_log import AdaptationLog, Escalating
from device_sdk.answer import FALLBACK, SERVER, SUBNET
from device_sdk.confidence import confidence
from device_sdk.execution import Outcome
from device_sdk.graph import Plan
from device_sdk.manifest import Manifest
from device_sdk.offload.escalation import EscalationSettings, Escalator
from device_sdk.runtimes.port import Array

if TYPE_CHECKING:
    from PIL import Image


class HardSamples:
    """Sends what a plan calls hard to a server, if one is connected, and marks who answered.

    Thread-safe. A server that stops answering, and one that answers again, is noted in the log.
    """

    def __init__(self, manifest: Manifest, log: AdaptationLog) -> None:
        self._manifest = manifest
        self._log = log
        self._lock = threading.Lock()
        self._escalator: Escalator | None = None
        self._private = True
        self._answering: bool | None = None

    def connect(self, settings: EscalationSettings) -> None:
        """Use this server from now on."""
        escalator = Escalator(
            settings,
            class_names=self._manifest.task.class_names,
            input_shape=self._manifest.cut_points[0].tensors[0].shape,
            preprocessing=self._manifest.preprocessing,
        )
        with self._lock:
            old, self._escalator, self._answering = self._escalator, escalator, None
            self._private = settings.privacy == "never"
        if old is not None:
            old.close()

    def close(self) -> None:
        """Use none. May be called twice."""
        with self._lock:
            old, self._escalator = self._escalator, None
        if old is not None:
            old.close()

    def answer(
        self, plan: Plan, outcome: Outcome, tensor: Array, images: npt.NDArray[np.uint8] | Image.Image | None
    ) -> tuple[Array, tuple[str, ...]]:
        """The answers [batch, classes] and who gave each, after the server has had its say.

        ``tensor`` [batch, *input] and ``images``, if known, are what the plan answered to.
        """
        source = _sources(plan, outcome)
        escalator = self._escalator
        if plan.escalation is None or escalator is None or self._private:
            return outcome.output, tuple(source)
        at_end = outcome.answered_by == len(plan.exits)
        hard = np.flatnonzero(at_end & (confidence(outcome.output) < plan.escalation.threshold))
        if not len(hard):
            return outcome.output, tuple(source)
        reply = escalator.answer(tensor[hard], _chosen(images, hard))
        self._note(reply.failure)
        output = outcome.output
        if reply.output is not None:
            output = output.copy()
            output[hard] = reply.output
        for position in hard:
            source[position] = FALLBACK if reply.output is None else SERVER
        return output, tuple(source)

    def _note(self, failure: str | None) -> None:
        with self._lock:
            changed = self._answering is not (failure is None)
            self._answering = failure is None
        if changed:
            self._log.write(Escalating(answering=failure is None, failure=failure))


def _sources(plan: Plan, outcome: Outcome) -> list[str]:
    if not plan.exits:
        return [SUBNET] * len(outcome.output)
    names = [*(f"exit {choice.exit}" for choice in plan.exits), SUBNET]
    return [names[number] for number in outcome.answered_by]


def _chosen(
    images: npt.NDArray[np.uint8] | Image.Image | None, positions: npt.NDArray[np.intp]
) -> npt.NDArray[np.uint8] | None:
    """The images at ``positions`` as [n, h, w, channels]; None where they are not at hand in this form."""
    if not isinstance(images, np.ndarray):
        return None
    if images.ndim == 4:
        return images[positions]
    return images.reshape(1, *images.shape[:2], -1)
