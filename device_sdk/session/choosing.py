"""Gathers what a choice needs on this device, has plans chosen (``policies.chooser``), and changes none."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from device_sdk.errors import InfeasibleBudgetError, InputError, TransferError, UsageError
from device_sdk.execution.loaded_segments import corrected
from device_sdk.execution.plan_in_use import PlanInUse
from device_sdk.logs import adaptation_log
from device_sdk.logs.adaptation_log import AdaptationLog
from device_sdk.offload.remote_model import LogarithmicPool, RemoteModel
from device_sdk.policies.chooser import Here, choose
from device_sdk.policies.costs.answers import answer_everywhere
from device_sdk.policies.deciding.decider_fitting import fit_pool
from device_sdk.policies.found import Found
from device_sdk.policies.gathering import AdaptationSettings
from device_sdk.policies.planning.proposers import Need, considered, that_need
from device_sdk.policies.planning.server_evidence import Servers
from device_sdk.profiling.profile import Profile
from device_sdk.profiling.profile import profile as measure_profile
from device_sdk.progress import Progress, SilentProgress
from device_sdk.session.choosing_splits import choose_pair, choose_split, home
from device_sdk.session.device_state import DeviceState
from device_sdk.session.remote_answers import RemoteAnswers
from device_sdk.session.samples import SampleChecker
from device_sdk.supernet.cost import Power, Uplink
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan, Split, Subnet
from device_sdk.tasks import AnswerTask, answer_task
from device_sdk.tasks.port import Targets

_BATCH = 64


class Choosing:
    """Has plans chosen for one device, among its subnets and the servers that ``remote`` is connected to.

    Under a memory cap the plan in use first gives up what no call runs, and what is loaded here is freed at the end.
    """

    def __init__(
        self,
        state: DeviceState,
        in_use: PlanInUse,
        samples: SampleChecker,
        remote: RemoteAnswers,
        log: AdaptationLog,
    ) -> None:
        self._state, self._in_use, self._samples, self._remote, self._log = state, in_use, samples, remote, log

    def profile(self, *, again: bool = False, batch: int = 1, progress: Progress) -> Profile:
        """The profile that is known, or measured now. Raises as ``profiling.profile``."""
        known = None if again else self._state.load_profile(batch=batch)
        if known is not None:
            return known
        profile = measure_profile(self._in_use.lend_workspace(), batch=batch, progress=progress)
        self._state.save_profile(profile)
        self._log.write(adaptation_log.profiled(profile))
        return profile

    def kinds(self, consider: Collection[str] | None, goal: Goal, *, estimates: bool = False) -> frozenset[str]:
        """The kinds of plans to consider; ``estimates``: a split may be estimated without a server.

        Raises:
            UsageError: an unknown kind, or one that lacks what it needs; says what.
        """
        models, tails = self._remote.asked_models, self._remote.tail_model
        asked = next((one for one in models if one.privacy == "inputs"), models[0] if models else None)
        usable: dict[Need, str] = {}
        if asked is not None and asked.privacy == "inputs":
            usable["answers"] = "ask"
        if tails is not None and tails.privacy != "never":
            usable["tails"] = "split"
        kinds = considered(consider, goal, usable.values() if self._task.classifies else ())
        self._require_possible(kinds, goal)
        needed: tuple[tuple[Need, RemoteModel | None, str], ...] = (
            ("answers", asked, "inputs"),
            ("tails", tails, "activations"),
        )
        for need, model, sent in needed:
            kind = next((one for one in that_need(need) if one in kinds), None)
            if kind is None or need in usable or (kind == "split" and estimates):
                continue
            if model is None:
                answers = "answers samples" if need == "answers" else "runs tails, NAME:tail"
                raise UsageError(f"no server is connected that {answers}", hint="model.remote.connect(RemoteModel(…))")
            hint = f'allow it with privacy="{sent}"'
            raise UsageError(f"{model.model} may be sent {_allowed(model)}; to {kind} needs {sent}", hint=hint)
        if "hybrid" in kinds and home(self._in_use.workspace.bundle, self._remote) is None:
            hint = f'connect {self._in_use.workspace.bundle.manifest.name} with privacy="inputs"'
            raise UsageError("no server is connected that has this bundle and may be sent samples", hint=hint)
        if "exits" in kinds and not self._in_use.workspace.bundle.supernet.exits:
            raise UsageError("there are no exits here to consider", hint="hold some with model.exits.hold(…)")
        if "hybrid" in kinds and kinds - {"hybrid"}:
            raise UsageError("a hybrid is chosen alone", hint='consider={"hybrid"}')
        return kinds

    def _require_possible(self, kinds: Collection[str], goal: Goal) -> None:
        """Of models that are no classifiers: subnets within a budget, or a split (UsageError)."""
        if self._task.classifies or set(kinds) == {"split"}:
            return
        kind = self._in_use.workspace.bundle.manifest.task.kind
        others = sorted(set(kinds) - {"subnets"})
        if others:
            hint = 'leave consider out, or give {"subnets"}, or {"split"} alone'
            raise UsageError(f"{others[0]} needs a classifier; this model is for {kind}", hint=hint)
        if not goal.is_budget:
            hint = "give limits alone: Goal(latency_ms=…), latency_ratio, memory_mb"
            raise UsageError(f"a model for {kind} adapts to a budget, for the best {self._task.name}", hint=hint)

    def choose(
        self,
        samples: Any,
        labels: Any,
        goal: Goal,
        kinds: Collection[str],
        *,
        settings: AdaptationSettings,
        uplink: Uplink | None,
        power: Power | None,
        progress: Progress,
    ) -> tuple[Found, RemoteModel | None]:
        """The best plan for ``goal``, and the model that has to be connected for it, if any.

        A goal that no plan keeps is noted in the log. Raises as ``AdaptiveModel.adapt``.
        """
        workspace, plan = self._in_use.lend_workspace(), self._in_use.running().plan
        profile = partial(self.profile, progress=progress)
        if set(kinds) == {"split"}:
            model, checker = self._remote.tail_model, self._samples
            found = choose_split(
                workspace,
                plan,
                model,
                checker,
                samples,
                labels,
                goal,
                profile,
                settings=settings,
                uplink=uplink,
                progress=progress,
            )
            return found, _server_of(found.plan.split, model)
        workspace.bundle.require_whole("adapting")
        inputs, raw = self._samples.inputs(samples), self._samples.raw(samples)
        targets = self.targets(labels, len(inputs))
        pool = self._state.load_pool()
        known = [one.subnet for one in (pool.candidates if pool is not None else ())]
        if "hybrid" in kinds:
            return choose_pair(
                workspace,
                self._remote,
                profile().cost_model(),
                list(dict.fromkeys([workspace.supernet.original, plan.subnet, *known])),
                inputs,
                raw,
                targets,
                goal,
                settings=settings,
                uplink=uplink,
                power=power,
                progress=progress,
            )
        servers = Servers()
        if any(one in kinds for one in (*that_need("answers"), *that_need("tails"))):
            servers = self._corrected(self._remote.gather(inputs, raw, uplink=uplink, progress=progress))
        here = Here(workspace, profile(), plan, known, servers, power)
        try:
            return choose(inputs, targets, goal, kinds, here, settings=settings, progress=progress), None
        except InfeasibleBudgetError as error:
            self._log.write(adaptation_log.infeasible(goal, error))
            raise

    def targets(self, labels: Any, count: int) -> Targets | None:
        """``labels`` as the targets of ``count`` samples; None without any (InputError)."""
        if labels is None:
            return None
        if len(labels) != count:
            raise InputError(f"there are {count} samples and labels of shape {np.shape(labels)}")
        return self._task.checked(labels, count)

    @property
    def _task(self) -> AnswerTask:
        return answer_task(self._in_use.workspace.bundle.manifest.task)

    def exits_for(self, subnet: Subnet, samples: Any, labels: Any, goal: Goal, settings: AdaptationSettings) -> Plan:
        """The plan with exits for another subnet than the one in use, by the same samples, its exits not timed."""
        plan, silent = Plan(subnet).with_prior(self._in_use.running().plan.class_prior), SilentProgress()
        here = Here(self._in_use.lend_workspace(), self.profile(progress=silent), plan)
        inputs = self._samples.inputs(samples)
        targets = self.targets(labels, len(inputs))
        return choose(inputs, targets, goal, {"exits"}, here, settings=settings, progress=silent, confirm=False).plan

    def pool(self, samples: Any, labels: Any, *, progress: Progress) -> tuple[RemoteModel, LogarithmicPool | None]:
        """The connected model, and how its answers and the subnet's in use are pooled; raises as ``fit_pool``."""
        models, plan = self._remote.asked_models, self._in_use.running().plan
        if not models:
            raise UsageError("no server is connected that answers samples", hint="connect one")
        if len(models) > 1:
            raise UsageError("a pool is of the answers of one server", hint="connect that one alone, then all of them")
        model = models[0]
        inputs, raw = self._samples.inputs(samples), self._samples.raw(samples)
        targets = self._task.checked(labels, len(inputs))
        servers = self._corrected(self._remote.gather_from(model, inputs, raw, uplink=None, progress=progress))
        if servers.logits is None:
            raise TransferError(servers.notes[0] if servers.notes else f"{model.model} may not be sent inputs")
        workspace = replace(self._in_use.lend_workspace(), prior=plan.class_prior)
        own = answer_everywhere(workspace, plan.subnet, inputs, targets, use_exits=False, batch=_BATCH)
        return model, fit_pool(own.logits[-1], servers.logits, targets)

    def _corrected(self, servers: Servers) -> Servers:
        """The same answers under the prior of the plan in use, as they are corrected when it asks."""
        prior = self._in_use.running().plan.class_prior
        answered = [replace(one, logits=corrected(one.logits, prior)) for one in servers.answered]
        return replace(servers, answered=tuple(answered))


def _server_of(split: Split | None, model: RemoteModel | None) -> RemoteModel | None:
    """The connection that a split needs beside that of tails: to a model that runs as a whole."""
    return replace(model, model=split.server.model) if model and split and split.is_whole else None


def _allowed(model: RemoteModel) -> str:
    return "nothing" if model.privacy == "never" else f"{model.privacy} only"
