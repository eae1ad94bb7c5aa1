"""Timed inference over images, with energy measurement."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, takewhile
from types import FrameType

from device_sdk.energy import Energy, EnergyMeter
from jetson_demo.figures import Figures
from jetson_demo.frames import Frame
from pathweave import AdaptiveModel, Answer
from pathweave.errors import InfeasibleDeadlineError

_WARM_UP = 5  # untimed runs
_GROUP_MS = 250.0  # of inference per energy measurement and screen update
_GROUP_FRAMES = 16


def run_frames(
    model: AdaptiveModel,
    frames: Iterator[Frame],
    meter: EnergyMeter,
    figures: Figures,
    *,
    stop: threading.Event,
    on_group: Callable[[Frame, Answer], None],
    deadline_ms: float | None = None,
) -> None:
    """Answer ``frames`` one by one at batch 1, until they end or ``stop`` is set, each by ``deadline_ms`` if given.

    In groups: 1. read and prepare some images; 2. run them back to back, timed and metered; 3. report the last one. So
    neither decoding nor drawing affects the measurements.
    """
    median_ms = 0.0
    frames = takewhile(lambda _: not stop.is_set(), frames)
    while group := list(islice(frames, group_size(median_ms))):
        if not figures.frames:
            for _ in range(_WARM_UP):
                model.infer(group[0].tensor)
        answers, energy = _answer(model, group, meter, deadline_ms)
        for answer in answers:
            if answer is None:
                figures.add_missed()
            else:
                figures.add_frame(answer.latency_ms, answer.source[0])
        figures.add_energy(energy, frames=len(group))
        median_ms = figures.recent().median_ms
        last = next(
            ((frame, answer) for frame, answer in zip(reversed(group), reversed(answers), strict=True) if answer), None
        )
        if last is not None:
            on_group(*last)


def _answer(
    model: AdaptiveModel, group: Sequence[Frame], meter: EnergyMeter, deadline_ms: float | None
) -> tuple[list[Answer | None], Energy]:
    """The answers; None where no exit can be sure to answer by the deadline."""
    answers: list[Answer | None] = []

    def answer(frame: Frame) -> Answer | None:
        try:
            return model.infer(frame.tensor, deadline_ms=deadline_ms)
        except InfeasibleDeadlineError:
            return None

    energy = meter.measure(lambda: answers.extend(map(answer, group)))
    return answers, energy


def group_size(median_ms: float) -> int:
    """Images per group of about a quarter of a second, at ``median_ms`` per image (0: unknown)."""
    return 1 if not median_ms > 0 else max(1, min(_GROUP_FRAMES, int(_GROUP_MS / median_ms)))


@contextlib.contextmanager
def stop_on_interrupt() -> Iterator[threading.Event]:
    """While open, the first Ctrl-C sets the event, so that the current group completes; the second one interrupts."""
    stop = threading.Event()

    def request(number: int, frame: FrameType | None) -> None:
        stop.set()
        signal.signal(signal.SIGINT, signal.default_int_handler)

    before = signal.signal(signal.SIGINT, request)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
