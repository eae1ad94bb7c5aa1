"""Searching for subnets at other latencies, in the background of calls."""

from __future__ import annotations

import contextlib
import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from device_sdk.data.inputs import Inputs, as_inputs
from device_sdk.errors import BudgetError, InfeasibleBudgetError, PathweaveError
from device_sdk.execution.workspace import Workspace
from device_sdk.live.plan_pool import rungs_ms
from device_sdk.policies.gathering import AdaptationSettings, search_positions
from device_sdk.policies.subnet_search import at_best_homes, at_named_homes, make_evaluator, with_prior
from device_sdk.progress import Progress
from device_sdk.random_source import SplitMix64
from device_sdk.runtimes.port import Array
from device_sdk.search import expected_candidates, find_subnets, make_strategy
from device_sdk.search.evaluation.evaluator import PrefixTreeEvaluator
from device_sdk.search.nearby import latency_range_ms
from device_sdk.search.port import Candidate, SearchProblem
from device_sdk.supernet.cost import Budget, CostModel
from device_sdk.supernet.paths import k_cheapest
from device_sdk.supernet.plan import Plan, Prior, Subnet
from device_sdk.tasks.port import Targets

_LEAST_RUNG_S = 1.0


class PoolSearch:
    """Searches on the samples on which an adaptation with the same ``settings`` searches.

    ``inputs`` and ``labels`` [count] are the device's own, ``prior`` is that of the adaptation. Latencies are those of
    ``cost_model``.
    """

    def __init__(
        self,
        workspace: Workspace,
        cost_model: CostModel,
        inputs: Inputs | Array,
        labels: Targets,
        settings: AdaptationSettings,
        prior: Prior | None = None,
    ) -> None:
        self._prior = prior
        kept, _ = search_positions(labels, settings)
        self._workspace, self._named, self._settings = workspace, cost_model, settings
        self._cost_model = at_best_homes(workspace, cost_model)
        self._inputs, self._labels = as_inputs(inputs).subset(kept), labels[kept]

    def fill(self, budget: Budget, *, time_limit_s: float, progress: Progress) -> list[Candidate]:
        """Candidates all the way from the fastest subnet to the slowest, besides those near ``budget`` itself.

        Rungs are searched one by one and share evaluations; ``time_limit_s`` is for all of them together. The
        full model and the fastest subnet always are among them.
        """
        assert budget.latency_ms is not None
        supernet, edge_latency_ms = self._workspace.supernet, self._cost_model.edge_latency_ms
        fastest_ms, slowest_ms = latency_range_ms(supernet, self._cost_model)
        rungs = rungs_ms(fastest_ms, slowest_ms, budget_ms=budget.latency_ms)
        limit_s = max(_LEAST_RUNG_S, time_limit_s / max(1, len(rungs)))
        ends = [supernet.original, k_cheapest(supernet, edge_latency_ms, k=1)[0][1]]
        evaluator = self._evaluator()
        try:
            found = self._evaluated(ends, evaluator)
            with progress.task("plan pool", len(rungs)) as task:
                for rung_ms in rungs:
                    rung = Budget(latency_ms=rung_ms, memory_mb=budget.memory_mb)
                    try:
                        found += self._search(rung, evaluator, limit_s, self._settings.cancelled, progress)
                    except BudgetError:
                        task.note(f"the memory limit leaves nothing at {rung_ms:.3g} ms")
                    task.advance()
            return self._housed(self._with_expectations(found, evaluator))
        finally:
            evaluator.close()

    def search(
        self, budget: Budget, *, time_limit_s: float, cancelled: Callable[[], bool], progress: Progress
    ) -> list[Candidate]:
        """Candidates at and around ``budget``, found by one search.

        Raises:
            InfeasibleBudgetError: no subnet fits.
        """
        evaluator = self._evaluator()
        try:
            return self._housed(self._search(budget, evaluator, time_limit_s, cancelled, progress))
        finally:
            evaluator.close()

    def _housed(self, found: Sequence[Candidate]) -> list[Candidate]:
        return at_named_homes(found, self._cost_model, self._named)

    def _search(
        self,
        budget: Budget,
        evaluator: PrefixTreeEvaluator,
        time_limit_s: float,
        cancelled: Callable[[], bool],
        progress: Progress,
    ) -> list[Candidate]:
        problem = SearchProblem(
            supernet=self._workspace.supernet,
            cost_model=self._cost_model,
            budget=budget,
            evaluator=evaluator,
            random=SplitMix64(self._settings.seed),
            clock=time.monotonic,
            progress=progress,
            time_limit_s=time_limit_s,
            cancelled=cancelled,
        )
        return list(with_prior(find_subnets(make_strategy(self._settings.strategy), problem), self._prior).pool)

    def _with_expectations(self, found: list[Candidate], evaluator: PrefixTreeEvaluator) -> list[Candidate]:
        """All candidates of all rungs by one measure, so that the pool compares like with like."""
        candidates = list({one.subnet: one for one in found}.values())
        return list(expected_candidates(candidates, self._workspace.supernet, evaluator))

    def _evaluated(self, subnets: Sequence[Subnet], evaluator: PrefixTreeEvaluator) -> list[Candidate]:
        accuracies = evaluator.accuracies(subnets)
        costs = map(self._cost_model.cost, subnets)
        plans = (Plan(subnet).with_prior(self._prior) for subnet in subnets)
        return [Candidate(*one) for one in zip(plans, costs, accuracies, strict=True)]

    def _evaluator(self) -> PrefixTreeEvaluator:
        evaluator = make_evaluator(self._workspace, self._cost_model, self._settings, self._inputs, self._labels)
        evaluator.use_prior(self._prior)
        return evaluator


_NICENESS = 10  # calls go first
_JOIN_S = 10.0

Search = Callable[[Budget, Callable[[], bool]], list[Candidate]]
"""Looks for candidates at a budget of predicted latency, until the second argument returns True."""


@dataclass(frozen=True)
class SearchOutcome:
    """Result of a search at a drift ratio; ``failure``: the error that ended it, None without one."""

    budget: Budget
    ratio: float
    candidates: tuple[Candidate, ...]
    seconds: float
    failure: str | None


class BackgroundSearch:
    """Runs at most one search at a time, in a thread of low priority, which also calls ``ended``."""

    def __init__(self, search: Search, ended: Callable[[SearchOutcome], None]) -> None:
        self._search, self._ended = search, ended
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()
        self._begun_s = -math.inf
        self._hopeless_ratio = math.inf

    def begin(self, budget: Budget, ratio: float, *, now_s: float, cooldown_s: float) -> bool:
        """Search at ``budget`` unless that is too soon or known to be in vain; True if a search is under way."""
        if self._thread is not None and self._thread.is_alive():
            return True
        if self._stopped.is_set() or ratio >= self._hopeless_ratio or 0 <= now_s - self._begun_s < cooldown_s:
            return False
        self._begun_s = now_s
        self._thread = threading.Thread(target=self._run, args=(budget, ratio), name="pathweave-search", daemon=True)
        self._thread.start()
        return True

    def stop(self) -> None:
        """End the search in progress, if there is one, and begin none any more."""
        self._stopped.set()
        self.wait(_JOIN_S)

    def wait(self, timeout_s: float) -> None:
        """Wait until the search in progress has ended, if there is one, at most ``timeout_s``."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self, budget: Budget, ratio: float) -> None:
        if hasattr(os, "setpriority"):
            with contextlib.suppress(OSError):  # on Linux a thread has a priority of its own
                os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
        started = time.monotonic()
        found: list[Candidate] = []
        failure = None
        try:
            found = self._search(budget, self._stopped.is_set)
        except PathweaveError as error:
            failure = str(error)
            if isinstance(error, InfeasibleBudgetError):
                self._hopeless_ratio = min(self._hopeless_ratio, ratio)
        if not self._stopped.is_set():
            self._ended(SearchOutcome(budget, ratio, tuple(found), time.monotonic() - started, failure))
