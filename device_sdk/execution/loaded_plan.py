"""A plan that is loaded: its segments, and which answer each sample gets."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import resize_prepared
from device_sdk.errors import UsageError
from device_sdk.execution.loaded_segments import LoadedSegments
from device_sdk.execution.outcome import (
    AFTER_FAILURE,
    AT_END,
    AT_SERVER,
    BY_SECOND,
    UNANSWERED,
    Answers,
    KeptActivations,
    Outcome,
    Waiting,
)
from device_sdk.execution.plan_segments import segments, steps
from device_sdk.execution.running_calls import MemoryCap, RunningCalls
from device_sdk.execution.stepped_plan import SteppedPlan
from device_sdk.runtimes.onnx_runtime import give_back_freed_memory
from device_sdk.runtimes.port import Array, Runtime, StopSignal
from device_sdk.supernet.cost import EdgeCost
from device_sdk.supernet.deciders.port import hard as is_hard
from device_sdk.supernet.deciders.port import leaving
from device_sdk.supernet.plan import Cascade, Edge, Plan

AtSize = Callable[[npt.NDArray[np.int64], tuple[int, ...]], Array]
"""Prepares some samples of a batch, by their positions, at another input size: [count, *input]."""

RunTail = Callable[[Sequence[Array]], Array | None]
"""Runs the tensors at the split to the end elsewhere: logits [batch, classes], or None if that failed."""


class LoadedPlan:
    """A plan that is ready to run. ``run`` may be called from several threads at once.

    Blocks behind a split are loaded too where they are its fallback: they run here without a server, or when it fails.

    ``memory_cap_bytes``: limit of all memory that it takes beyond the bare runtime, for batches of up to ``batch``
    samples. If the plan needs more, it runs in pages, of which as many stay as there is room for: the same answers
    within 1e-5, bit for bit where the pages are the same. ``costs``: the working sets that were measured here.
    A ``runtime`` made ``lean`` keeps to the cap more closely. ``cap``: the model's, see ``LoadedSegments``.

    Raises:
        UsageError: the plan does not fit the bundle's graph.
        BudgetError: the cap is too small for the largest block; says the least that works.
        BlobError, CompositionError, RuntimeFailedError: a segment does not load.
    """

    def __init__(
        self,
        bundle: Bundle,
        runtime: Runtime,
        plan: Plan,
        *,
        memory_cap_bytes: int | None = None,
        cap: MemoryCap | None = None,
        costs: Mapping[Edge, EdgeCost] | None = None,
        batch: int = 1,
    ) -> None:
        bundle.supernet.check_plan(plan)
        self.input_size = plan.subnet.input_size  # of the tensors that it takes; empty: the model's own
        self._exits = len(plan.exits)
        self._numbers = {choice.exit: number for number, choice in enumerate(plan.exits)}
        self._load = partial(
            LoadedSegments,
            bundle,
            runtime,
            memory_cap_bytes=memory_cap_bytes,
            cap=cap,
            costs=costs,
            batch=batch,
            prior=plan.class_prior,
        )
        found = segments(bundle.supernet, plan)
        self._loaded = self._load(found)
        pairs = list(zip(found, self._loaded.stretches, strict=True))
        self._segments = [pair for pair in pairs if not (pair[0].fallback or pair[0].second)]
        self._cascade = plan.hard if isinstance(plan.hard, Cascade) else None
        self._second = next((stretch for segment, stretch in pairs if segment.second), None)
        self._fallback = plan.split.fallback if plan.split is not None else "subnet"
        self._branch = next((stretch for segment, stretch in pairs if segment.fallback), None)
        self._own_size = bundle.supernet.cut_points[0].tensors[0].shape[1:]
        self._output_shape = bundle.supernet.cut_points[-1].tensors[-1].shape
        self._every_step = steps(bundle.supernet, plan)
        self._calls, self._hurry = RunningCalls(), StopSignal()
        self._stepping = threading.Lock()  # guards the next two
        self._stepped: SteppedPlan | None = None
        self._every_loaded = [self._loaded]

    @property
    def taken_bytes(self) -> int:
        """Bytes that this plan takes now, as its footprints estimate them."""
        with self._stepping:
            return sum(loaded.taken_bytes for loaded in self._every_loaded)

    @property
    def has_steps(self) -> bool:
        """True if the plan has an answer on this device alone, without its server."""
        return bool(self._every_step)

    @property
    def page_loads(self) -> int | None:
        """Number of page loads so far, without those of a ``stepped`` plan of its own; None without a memory cap."""
        return self._loaded.page_loads

    def load_each(self) -> None:
        """Under a memory cap, load all pages once, so that errors show now. Raises as the plan itself."""
        self._loaded.load_each()

    def release(self) -> None:
        """Under a memory cap, free the pages that no call runs now; the next call loads them again."""
        with self._stepping:
            for loaded in self._every_loaded:
                loaded.release()

    def run(
        self, tensor: Array, run_tail: RunTail | None = None, *, asks: bool = False, at_size: AtSize | None = None
    ) -> Outcome:
        """Answer a batch [batch, *input]; ``run_tail`` goes on behind the plan's split, if it has one.

        ``asks``: exits may send samples to a server. These leave the path there (``Outcome.asking``); without
        ``asks`` they go on. ``at_size``: for a cascade whose second path has another input size; without it ``tensor``
        is resized.

        Raises:
            RuntimeFailedError: the runtime failed.
            BlobError: a page had to be loaded again, and its blob is damaged.
            PlanRetired: the plan gave way to another one before it answered.
        """
        with self._calls:
            [(segment, first), *others] = self._segments
            if first is None or others or segment.exit is not None or segment.split or self._cascade is not None:
                answers = Answers(len(tensor))
                start = Waiting(np.arange(len(tensor)), (tensor,))
                outcome = answers.outcome(*self._run_from(start, answers, run_tail, asks=asks))
                if self._cascade is not None:
                    self._run_second(self._cascade, tensor, outcome, at_size)
                return outcome
            output = first.run([tensor])[-1]
            return Outcome(output, np.full(len(output), self._exits + AT_END, dtype=np.int64))

    def go_on(self, outcome: Outcome) -> Outcome:
        """Run the rest of the path here for the samples that left it for a server. Raises as ``run``."""
        answers = Answers.of(outcome)
        with self._calls:
            for waiting in outcome.asking:
                self._run_from(waiting, answers, None, asks=False)
        return answers.outcome(outcome.kept)

    def _run_from(
        self, start: Waiting, answers: Answers, run_tail: RunTail | None, *, asks: bool
    ) -> tuple[KeptActivations | None, tuple[Waiting, ...]]:
        """Run the segments from ``start`` on; returns activations that may be sent, and samples bound for a server."""
        features: Sequence[Array] = start.tensors
        rest, latest = start.samples, start.latest  # samples without an answer; in case there is no time left
        kept: KeptActivations | None = None
        asking: list[Waiting] = []
        aside: Sequence[Array] = ()
        end = AT_END
        for number, (segment, stretch) in enumerate(self._segments[start.segment :], start.segment + 1):
            if stretch is not None:
                outputs = stretch.run(features) if latest is None else stretch.run_until(features, self._hurry)
                if outputs is None:
                    assert latest is not None
                    answers.put(rest, *latest)
                    break
                features = outputs
            if segment.kept:
                kept = KeptActivations(rest, tuple(features if segment.exit is None else features[:-1]))
            if segment.exit is not None:
                *features, logits = features
                exit_number = self._numbers[segment.exit.exit]
                if (number == len(self._segments) and not segment.split) or self._hurry.is_set:
                    answers.put(rest, logits, exit_number)
                    break
                answered, asked = leaving(segment.exit, logits)
                if answered.all():
                    answers.put(rest, logits, exit_number)
                    break
                if asks and asked.any():
                    tensors = tuple(feature[asked] for feature in features)
                    asking.append(Waiting(rest[asked], tensors, number, (logits[asked], exit_number)))
                    answered |= asked
                if answered.any():
                    answers.put(rest[answered], logits[answered], exit_number)
                    on = ~answered
                    rest, logits, features = rest[on], logits[on], [feature[on] for feature in features]
                    if not len(rest):
                        break
                latest = (logits, exit_number)
            if segment.aside:
                aside = features
            if segment.split and run_tail is not None:
                remote = run_tail(features)
                if remote is not None:
                    answers.put(rest, remote, self._exits + AT_SERVER)
                    break
                end = AFTER_FAILURE
        else:
            if self._fallback == "subnet":
                answers.put(rest, features[-1], self._exits + end)
            else:
                self._fall_back(answers, rest, latest, aside)
        return kept, tuple(asking)

    def _run_second(self, cascade: Cascade, tensor: Array, outcome: Outcome, at_size: AtSize | None) -> None:
        """Have the second path answer the samples of ``outcome`` that reached the end of the first and are hard."""
        assert self._second is not None
        reached = np.flatnonzero(outcome.answered_by == self._exits + AT_END)
        if not len(reached) or self._hurry.is_set:
            return
        hard = reached[is_hard(cascade.decider, outcome.output[reached])]
        if not len(hard):
            return
        if cascade.position:
            assert outcome.kept is not None
            inputs = outcome.kept.of(hard)
        elif cascade.subnet.input_size == self.input_size:
            inputs = (tensor[hard],)
        elif at_size is not None:
            inputs = (at_size(hard, cascade.subnet.input_size),)
        else:
            inputs = (resize_prepared(tensor[hard], cascade.subnet.input_size or self._own_size),)
        outputs = self._second.run_until(inputs, self._hurry)
        if outputs is not None:
            outcome.output[hard] = outputs[-1]
            outcome.answered_by[hard] = self._exits + BY_SECOND

    def _fall_back(
        self,
        answers: Answers,
        rest: npt.NDArray[np.int64],
        latest: tuple[Array, int] | None,
        aside: Sequence[Array],
    ) -> None:
        """Answer the samples that the split's server did not answer, without the rest of the subnet."""
        if self._fallback == "abstain":
            nothing = np.full((len(rest), *self._output_shape), np.nan, dtype=np.float32)
            answers.put(rest, nothing, self._exits + UNANSWERED)
            return
        if self._branch is not None:
            logits = self._branch.run(aside)[-1]
        else:
            assert latest is not None  # the exit answers by confidence, so it was tried
            logits = latest[0]
        answers.put(rest, logits, self._exits + AFTER_FAILURE)

    def stepped(self) -> SteppedPlan:
        """The same plan exit by exit, for deadlines and interruptions; loaded on first use.

        It shares the loaded segments if its steps equal the plan's segments. Raises as the plan itself.

        Raises:
            UsageError: the plan answers nothing on this device alone.
        """
        if not self.has_steps:
            raise UsageError(
                "the plan answers nothing here without its server, so it keeps no deadline",
                hint="use a plan with an exit before the split",
            )
        with self._stepping:
            if self._stepped is None:
                same = self._every_step == [segment for segment, _ in self._segments]
                loaded = self._loaded if same else self._load(self._every_step)
                self._every_loaded += [] if same else [loaded]
                self._stepped = SteppedPlan(self._every_step, loaded, self._calls, self._hurry)
            return self._stepped

    def hurry(self) -> None:
        """Have calls answer with the last exit that they reached, or the first that they reach, from now on."""
        self._hurry.set()

    def count(self) -> None:
        """See ``LoadedSegments.count``: from now on until the plan is freed."""
        with self._stepping:
            for loaded in self._every_loaded:
                loaded.count()

    def retire(self) -> None:
        """Refuse new calls (they raise PlanRetired), and free the sessions when the last call has ended."""
        self._calls.retire(self._close_and_trim)

    def _close_and_trim(self) -> None:
        self.close()
        give_back_freed_memory()  # of small sessions too: what is retired leaves because memory is short

    def close(self) -> None:
        """Free the sessions. May be called twice."""
        with self._stepping:
            for loaded in self._every_loaded:
                loaded.close()
