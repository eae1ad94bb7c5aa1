"""What a server adds to a plan's answers: the tails of split plans, and the hard samples. Marks who answered."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.confidence import confidence
from device_sdk.execution.loaded_plan import AFTER_FAILURE, AT_END, LoadedPlan, Outcome
from device_sdk.logs.adaptation_log import AdaptationLog, Escalating, Splitting
from device_sdk.offload.escalation import Escalator
from device_sdk.offload.packing import Activations
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.tail import RemoteTail
from device_sdk.runtimes.port import Array
from device_sdk.session.answer import FALLBACK, SERVER, SUBNET
from device_sdk.supernet.plan import Plan

if TYPE_CHECKING:
    from PIL import Image


class RemoteAnswers:
    """The servers that a model is connected to: one for hard samples, one for tails. Thread-safe.

    A server that stops answering, and one that answers again, is noted in the log.
    """

    def __init__(self, bundle: Bundle, log: AdaptationLog) -> None:
        self._bundle = bundle
        self._log = log
        self._lock = threading.Lock()  # guards all that follows
        self._escalator: Escalator | None = None
        self._tail: RemoteTail | None = None
        self._answering: dict[type, bool] = {}

    def connect_escalation(self, model: RemoteModel) -> None:
        """Ask this model about hard samples from now on."""
        manifest = self._bundle.manifest
        escalator = Escalator(
            model,
            class_names=manifest.task.class_names,
            input_shape=manifest.cut_points[0].tensors[0].shape,
            preprocessing=manifest.preprocessing,
        )
        with self._lock:
            old, self._escalator = self._escalator, escalator
            self._answering.pop(Escalating, None)
        if old is not None:
            old.close()

    def connect_tail(self, model: RemoteModel) -> None:
        """Have this model run tails from now on."""
        tail = RemoteTail(model, bundle=self._bundle.digest, classes=len(self._bundle.manifest.task.class_names))
        with self._lock:
            old, self._tail = self._tail, tail
            self._answering.pop(Splitting, None)
        if old is not None:
            old.close()

    def close(self) -> None:
        """Ask nobody. May be called twice."""
        with self._lock:
            old = (self._escalator, self._tail)
            self._escalator = self._tail = None
        for one in old:
            if one is not None:
                one.close()

    def answer(
        self,
        plan: Plan,
        loaded: LoadedPlan,
        tensor: Array,
        images: npt.NDArray[np.uint8] | Image.Image | None,
    ) -> tuple[Array, tuple[str, ...]]:
        """Run ``plan`` on ``tensor`` [batch, *input], the servers helping: logits [batch, classes] and who gave each.

        ``images``: the same samples before they were prepared, if known.
        """
        tail = self._tail
        if plan.split is None or tail is None or tail.model.privacy == "never":
            outcome = loaded.run(tensor)
        else:
            outcome = loaded.run(tensor, lambda features: self._run_tail(tail, plan, features))
        return self._escalate(plan, outcome, tensor, images)

    def _run_tail(self, tail: RemoteTail, plan: Plan, features: Sequence[Array]) -> Array | None:
        assert plan.split is not None
        position = plan.split.position
        edges = tuple(edge for edge, block in self._bundle.supernet.walk(plan.subnet) if block.start >= position)
        reply = tail.run(Activations(self._bundle.digest, position, edges, tuple(features)))
        self._note(Splitting, reply.failure)
        return reply.output

    def _escalate(
        self, plan: Plan, outcome: Outcome, tensor: Array, images: npt.NDArray[np.uint8] | Image.Image | None
    ) -> tuple[Array, tuple[str, ...]]:
        source = _sources(plan, outcome)
        escalator = self._escalator
        if plan.escalation is None or escalator is None or escalator.model.privacy != "inputs":
            return outcome.output, tuple(source)
        here = np.isin(outcome.answered_by - len(plan.exits), (AT_END, AFTER_FAILURE))
        hard = np.flatnonzero(here & (confidence(outcome.output) < plan.escalation.threshold))
        if not len(hard):
            return outcome.output, tuple(source)
        reply = escalator.answer(tensor[hard], _chosen(images, hard))
        self._note(Escalating, reply.failure)
        output = outcome.output
        if reply.output is not None:
            output = output.copy()
            output[hard] = reply.output
        for position in hard:
            source[position] = FALLBACK if reply.output is None else SERVER
        return output, tuple(source)

    def _note(self, event: type[Escalating] | type[Splitting], failure: str | None) -> None:
        with self._lock:
            changed = self._answering.get(event) is not (failure is None)
            self._answering[event] = failure is None
        if changed:
            self._log.write(event(answering=failure is None, failure=failure))


def _sources(plan: Plan, outcome: Outcome) -> list[str]:
    if not plan.exits and plan.split is None:
        return [SUBNET] * len(outcome.output)
    names = [*(f"exit {choice.exit}" for choice in plan.exits), SUBNET, SERVER, FALLBACK]
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
