"""``model.live``: keeps the plan right while conditions change, by four signals that can each be followed or not."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Literal

from device_sdk.errors import UsageError
from device_sdk.execution.plan_in_use import Active, PlanInUse
from device_sdk.live.elastic import ElasticSettings
from device_sdk.live.mix_follower import MixFollower
from device_sdk.live.switching import LiveSettings
from device_sdk.logs import adaptation_log
from device_sdk.logs.adaptation_log import AdaptationLog, PriorChanged
from device_sdk.memory_pressure import MemoryPressure, find_memory_pressure
from device_sdk.policies.found import Found
from device_sdk.policies.planning.choice import Choice
from device_sdk.policies.planning.front import PlanFront
from device_sdk.runtimes.port import Array
from device_sdk.session.device_state import DeviceState
from device_sdk.session.elastic_memory import ElasticMemory
from device_sdk.session.live_keeper import LiveKeeper, NetworkKeeper
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Prior

Signal = Literal["latency", "network", "memory", "classes"]
SIGNALS: tuple[Signal, ...] = ("latency", "network", "memory", "classes")


class Live:
    """Follows signals in threads of its own; taking another plan ends ``latency`` and ``network``.

    ``change``: held by whatever changes the plan.
    """

    def __init__(
        self,
        state: DeviceState,
        in_use: PlanInUse,
        samples: SampleChecker,
        latency: LiveKeeper,
        network: NetworkKeeper,
        memory: ElasticMemory,
        log: AdaptationLog,
        change: Lock,
    ) -> None:
        self._state, self._in_use, self._samples, self._log = state, in_use, samples, log
        self._latency, self._network, self._memory, self._change = latency, network, memory, change
        self._mix: MixFollower | None = None
        self._front: Callable[[], PlanFront] | None = None

    @property
    def running(self) -> frozenset[Signal]:
        """The signals that are followed now."""
        now = {
            "latency": self._latency.running,
            "network": self._network.running,
            "memory": self._memory.watching,
            "classes": self._mix is not None,
        }
        return frozenset(signal for signal in SIGNALS if now[signal])

    def start(
        self,
        *signals: Signal,
        goal: Goal | None = None,
        settings: LiveSettings | None = None,
        elastic: ElasticSettings | None = None,
        pressure: MemoryPressure | None = None,
    ) -> None:
        """Follow ``signals`` from now on, by default ``latency``.

        ``latency``: a thread watches how long single samples take, and exchanges the subnet for the most accurate of
        the last search that keeps the latency, here ``goal``'s if there is one; the next ``open`` starts with that of
        the search. ``network``: bandwidth and round trip are kept up to date from requests and probes, and when they
        change another of the last choice's plans takes over, also after the next ``open``; connect the server first.
        ``memory``: under pressure running calls answer with the last exit that they reached, and the cap and the exits
        shrink; they grow again when there has been room for a while. The cap that is set is the most. ``classes``: the
        mix of classes is estimated from the answers, and answers are corrected by it once it has surely changed; while
        the network is followed the prior stays. Counts are kept, no samples.

        ``settings``: of ``latency``; ``elastic``: of ``memory``, whose ``pressure`` is by default read from the control
        groups of version 2 and the whole system.

        Raises:
            UsageError: an unknown signal; nothing was adapted to a latency here, or the plan in use is split or not of
                that search; no plans for other networks are known, or no server is connected that they know; the model
                is no classifier.
            MeasurementError: the system says nothing about memory.
        """
        self._in_use.running()
        followed = signals or ("latency",)
        _check(followed)
        if "classes" in followed:
            self._samples.require_classifier()
        if "latency" in followed:
            self._in_use.workspace.bundle.require_whole("live update")
            with self._change:
                self._latency.start(None if goal is None else goal.budget(), settings or LiveSettings())
        if "network" in followed:
            with self._change:
                self._follow_network()
        if "memory" in followed:
            self._memory.watch(pressure or find_memory_pressure(), elastic or ElasticSettings())
        if "classes" in followed and self._mix is None:
            self._mix = MixFollower(self._use_prior)
            self._mix.start()

    def stop(self, *signals: Signal) -> None:
        """Follow ``signals`` no longer, by default none at all; the plan in use and its prior stay. May be repeated."""
        ended = signals or SIGNALS
        _check(ended)
        if "latency" in ended:
            self._latency.stop()
        if "network" in ended:
            self._network.stop()
        if "memory" in ended:
            self._memory.stop()
        if "classes" in ended:
            mix, self._mix = self._mix, None
            if mix is not None:
                mix.stop()

    def offer(self, found: Found) -> None:
        """Take the plans for other networks from ``found`` when the network is followed next."""
        self._front = found.front

    def note(self, logits: Array, prior: Prior | None) -> None:
        """An answer [batch, classes] was given, corrected by ``prior``. This runs in every call."""
        mix = self._mix
        if mix is not None:
            mix.note(logits, prior)

    def _follow_network(self) -> None:
        made = self._front
        front = self._state.load_front() if made is None else made()
        if front is None:
            raise UsageError(
                "no plans for other networks are known here", hint='adapt with consider={"ask", …} or {"split"} first'
            )
        self._latency.stop()

        def exchanged(choice: Choice, uplink: Uplink | None) -> None:
            self._log.write(adaptation_log.followed(choice, front.requirement, uplink, samples=front.samples))

        self._network.follow(front, exchanged=exchanged)
        if made is not None:
            self._state.save_front(front)
            self._front = None

    def _use_prior(self, prior: Prior, answers: int, moved_share: float) -> None:
        """Correct answers by ``prior`` from now on, also those of the plan that the next ``open`` starts with."""
        with self._change:
            if self._network.running:  # its plans are judged under the prior that they were made with
                return
            active = self._in_use.running()
            plan = active.plan.with_prior(prior)
            loaded = self._in_use.prepare(plan)
            self._state.save_plan((self._state.load_plan() or plan).with_prior(prior))
            self._latency.use_prior(prior)
            if not self._in_use.exchange(Active(plan, loaded), expected=active):
                loaded.close()  # another plan of the pool came first
                return
            self._latency.follow()
            self._log.write(PriorChanged(answers=answers, moved_share=moved_share))


def _check(signals: tuple[str, ...]) -> None:
    unknown = [one for one in signals if one not in SIGNALS]
    if unknown:
        raise UsageError(f"there is no signal {unknown[0]!r}", hint="known: " + ", ".join(SIGNALS))
