"""Answers of servers: tails of split plans, and hard samples. Marks each answer's source."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import Inputs
from device_sdk.errors import UsageError
from device_sdk.execution.loaded_plan import AtSize, LoadedPlan
from device_sdk.execution.loaded_segments import corrected
from device_sdk.execution.outcome import AFTER_FAILURE, AT_END, AT_SERVER, Outcome
from device_sdk.logs.adaptation_log import AdaptationLog, Escalating, Splitting
from device_sdk.offload.agreement import RawBatch
from device_sdk.offload.asking import AskClient
from device_sdk.offload.link_estimate import LinkEstimate, LinkProbe, PlannedTail, ServerWait
from device_sdk.offload.packing import Activations
from device_sdk.offload.remote_calls import RemoteReply
from device_sdk.offload.remote_model import AskedShare, LogarithmicPool, RemoteModel, why_unfit
from device_sdk.offload.tail import TailClient, runs_tails
from device_sdk.policies.planning.server_evidence import RawSamples, Servers, ask_servers
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.session.answer import ABSTAINED, CASCADE, FALLBACK, SERVER, SUBNET
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.deciders.port import hard as hard_samples
from device_sdk.supernet.plan import Abstain, AnswerLocally, Ask, Cascade, Edge, Hard, Plan, RemoteRef, Split

if TYPE_CHECKING:
    from device_sdk.session.samples import Raw


class RemoteAnswers:
    """The servers that a model is connected to: models that answer samples, one that runs tails. Thread-safe.

    A plan names the server's model. If only others are connected, nothing is sent and the device's own answer stands.
    The log notes when a server stops answering and when it answers again.
    """

    def __init__(self, bundle: Bundle, log: AdaptationLog) -> None:
        self._bundle = bundle
        self._log = log
        self._lock = threading.Lock()  # guards all that follows
        self._asking: tuple[AskClient, ...] = ()
        self._tail: TailClient | None = None
        self._answering: dict[type, bool] = {}
        self._link: LinkEstimate | None = None
        self._answer_ms = 0.0
        self._shares: dict[str, AskedShare] = {}

    def connect(self, models: Sequence[RemoteModel]) -> None:
        """Use these models from now on: for samples, or for tails if that is what one runs. Closes those before.

        Raises:
            UsageError: two have one name, by which plans tell them apart, or several run tails.
        """
        running = [one for one in models if runs_tails(one.model)]
        answering = [one for one in models if not runs_tails(one.model)]
        names = [one.model for one in answering]
        if len(running) > 1 or len(set(names)) < len(names):
            raise UsageError(
                f"the models {', '.join(one.model for one in models)} cannot be connected together",
                hint="models that answer samples need different names, and one at most runs tails",
            )
        if running:
            shape = self._bundle.manifest.cut_points[-1].tensors[0].shape
            version = self._bundle.manifest.version
            tail = TailClient(running[0], bundle=self._bundle.digest, output_shape=shape, version=version)
            with self._lock:
                replaced, self._tail = self._tail, tail
                self._answering.pop(Splitting, None)
            if replaced is not None:
                replaced.close()
        if answering:
            clients = tuple(self._client_to(one) for one in answering)
            with self._lock:
                old, self._asking = self._asking, clients
                self._shares = {one.model: AskedShare(one.share) for one in answering if one.share is not None}
                self._answering.pop(Escalating, None)
            for client in old:
                client.close()

    def _client_to(self, model: RemoteModel) -> AskClient:
        manifest = self._bundle.manifest
        return AskClient(
            model,
            class_names=manifest.task.class_names,
            input_shape=manifest.cut_points[0].tensors[0].shape,
            input_type=manifest.cut_points[0].tensors[0].dtype,
            preprocessing=manifest.preprocessing,
            output_shape=manifest.cut_points[-1].tensors[0].shape,
            task=manifest.task.kind,
            answered=self._answered,
            failed=self._failed,
        )

    def tell(self, link: LinkEstimate | None, *, answer_ms: float = 0.0) -> None:
        """Tell ``link`` of every request for samples from now on; ``answer_ms``: what the server works on one."""
        with self._lock:
            self._link, self._answer_ms = link, answer_ms

    @property
    def asked_models(self) -> tuple[RemoteModel, ...]:
        """The connected models that answer samples."""
        return tuple(client.model for client in self._asking)

    @property
    def tail_model(self) -> RemoteModel | None:
        """The connected model that runs tails."""
        tail = self._tail
        return None if tail is None else tail.model

    @property
    def is_connected(self) -> bool:
        """True if a server is connected."""
        return bool(self._asking) or self._tail is not None

    def prober(self, link: LinkEstimate, tail: PlannedTail | None = None) -> LinkProbe:
        """Probe that measures the round trip to the connected server; with ``tail`` its load counts too.

        Raises:
            UsageError: none is connected.
        """
        connected = self._asking[0] if self._asking else self._tail
        if connected is None:
            raise UsageError("no server is connected")
        wait: ServerWait | None = None
        if tail is not None and self._tail is not None:
            cuts = self._bundle.manifest.cut_points
            wait = ServerWait(
                self._tail.model,
                tail,
                cut=cuts[tail.position],
                bundle=self._bundle.digest,
                version=self._bundle.manifest.version,
                output_shape=cuts[-1].tensors[0].shape,
            )
        return LinkProbe(connected.model, link, wait)

    def try_again(self) -> None:
        """The server was seen to answer: do not wait until it is asked again."""
        for client in (*self._asking, self._tail):
            if client is not None:
                client.try_again()

    def _answered(self, size_bytes: int, samples: int, seconds: float) -> None:
        link = self._link
        if link is not None:
            link.record(size_bytes, seconds, samples * self._answer_ms)

    def _failed(self) -> None:
        link = self._link
        if link is not None:
            link.failed()

    def close(self) -> None:
        """Disconnect all servers. Idempotent."""
        with self._lock:
            old = (*self._asking, self._tail)
            self._asking, self._tail, self._shares = (), None, {}
        for client in old:
            if client is not None:
                client.close()

    def gather(
        self,
        inputs: Inputs,
        raw: RawSamples | None,
        *,
        uplink: Uplink | None,
        progress: Progress,
    ) -> Servers:
        """Answers of the connected servers to all samples, and the time that they take.

        See ``policies.planning.server_evidence``.
        """
        return ask_servers(
            self._asking,
            self._tail,
            self._bundle,
            inputs,
            raw,
            uplink=uplink,
            progress=progress,
        )

    def gather_from(
        self,
        model: RemoteModel,
        inputs: Inputs,
        raw: RawSamples | None,
        *,
        uplink: Uplink | None,
        progress: Progress,
    ) -> Servers:
        """The same of one model, connected or not, that answers samples."""
        with contextlib.closing(self._client_to(model)) as client:
            return ask_servers([client], None, self._bundle, inputs, raw, uplink=uplink, progress=progress)

    def why_not(self, plan: Plan) -> str | None:
        """Why a server that ``plan`` needs cannot be used now; None if all can, or it needs none."""
        if plan.split is not None:
            reason = self._split_unfit(plan.split)
            if reason is not None:
                return reason
        return self._ask_unfit(plan.hard) if isinstance(plan.hard, Ask) else None

    def answer(
        self,
        plan: Plan,
        loaded: LoadedPlan,
        tensor: Array,
        raw: Raw | None,
        at_size: AtSize,
    ) -> tuple[Array, tuple[str, ...]]:
        """Run ``plan`` on ``tensor`` [batch, *input]: logits [batch, classes] and the source of each.

        ``raw``: the same samples before they were prepared, if known; ``at_size``: prepares them at another size.
        """
        tail, split, prior = self._tail, plan.split, plan.class_prior
        if split is None or self._split_unfit(split) is not None:
            asks = plan.asks_early and self._is_ready(plan.hard)
            outcome = loaded.run(tensor, asks=asks, at_size=at_size)  # past the split, or as its fallback says
        elif split.is_whole or tail is None:
            outcome = loaded.run(tensor, lambda _: corrected(self._ask_all(split.server, tensor, raw), prior))
        else:
            outcome = loaded.run(
                tensor,
                lambda features: corrected(self._run_split(tail, split, features), prior),
            )
        if isinstance(plan.hard, AnswerLocally | Cascade):  # the plan ran its second path itself
            return outcome.output, tuple(_sources(plan, outcome))
        return self._with_hard(plan, plan.hard, loaded, outcome, tensor, raw)

    def _with_hard(
        self,
        plan: Plan,
        policy: Abstain | Ask,
        loaded: LoadedPlan,
        outcome: Outcome,
        tensor: Array,
        raw: Raw | None,
    ) -> tuple[Array, tuple[str, ...]]:
        """Answers after hard samples at the end were sent or left unanswered; a server's answer can only be the latter.

        Those that ask from exits are sent with them, in one call with one time-out; they go on here if it fails.
        """
        output = outcome.output
        at_end = _at_end(plan, policy, outcome)
        reached = np.flatnonzero(at_end)
        positions = reached
        if len(reached):  # else there is nothing to decide
            positions = reached[self._hard(policy, output if len(reached) == len(output) else output[reached])]
        if outcome.asking:
            positions = np.union1d(positions, np.concatenate([waiting.samples for waiting in outcome.asking]))
        if not len(positions):
            return output, tuple(_sources(plan, outcome))
        if isinstance(policy, Abstain):
            mark = ABSTAINED
        else:
            pool = self._pool_for(policy)
            reply = corrected(self._ask(policy, outcome, positions, tensor, raw), plan.class_prior)
            mark = FALLBACK if reply is None else SERVER
            if reply is not None:
                own, output = output, output.copy()
                output[positions] = reply
                if pool is not None:  # exits' answers are not: the pool was fitted to those at the end
                    pooled = positions[at_end[positions]]
                    output[pooled] = pool.pooled(own[pooled], output[pooled])
            elif outcome.asking:
                outcome = loaded.go_on(outcome)
                output = outcome.output
        sources = _sources(plan, outcome)
        for position in positions:
            sources[position] = mark
        return output, tuple(sources)

    def _hard(self, policy: Abstain | Ask, output: Array) -> npt.NDArray[np.bool_]:
        """Mask [batch] of hard samples by their logits [batch, classes]; the connection may keep their share."""
        share = None
        if isinstance(policy, Ask) and policy.sends == "input" and (client := self._client_of(policy.server)):
            share = self._shares.get(client.model.model)
        return hard_samples(policy.decider, output) if share is None else share.hard(policy.decider, output)

    def _pool_for(self, ask: Ask) -> LogarithmicPool | None:
        """Pool of replies with the device's own answers; only replies to inputs are pooled."""
        client = self._client_of(ask.server) if ask.sends == "input" else None
        return None if client is None else client.model.pool

    def _is_ready(self, hard: Hard) -> bool:
        """True if the plan's server is connected, may be sent to, and is not in a pause after failures."""
        if not isinstance(hard, Ask):
            return False
        client = self._client_of(hard.server) if hard.sends == "input" else self._tail
        return self._ask_unfit(hard) is None and client is not None and client.ready

    def _ask_unfit(self, ask: Ask) -> str | None:
        if ask.sends == "input":
            return self._asking_unfit(ask.server)
        return self._tail_unfit(ask.server, ask.sends)

    def _ask(
        self,
        ask: Ask,
        outcome: Outcome,
        positions: npt.NDArray[np.intp],
        tensor: Array,
        raw: Raw | None,
    ) -> Array | None:
        """The server's logits for the samples at ``positions``; None if there are none."""
        if ask.sends != "input":
            tail = self._tail
            if tail is None or outcome.kept is None or self._tail_unfit(ask.server, ask.sends) is not None:
                return None
            return self._run_tail(tail, ask.sends, ask.tail, outcome.kept.of(positions))
        client = self._client_of(ask.server)
        if client is None or self._asking_unfit(ask.server) is not None:
            return None
        reply = client.answer(tensor[positions], _chosen(raw, positions), digest=ask.server.digest)
        return self._noted(Escalating, reply)

    def _ask_all(self, server: RemoteRef, tensor: Array, raw: Raw | None) -> Array | None:
        """The logits of the server's model for the whole batch; None if there are none."""
        client = self._client_of(server)
        if client is None:
            return None
        every = np.arange(len(tensor))
        return self._noted(Escalating, client.answer(tensor, _chosen(raw, every), digest=server.digest))

    def _run_split(self, client: TailClient, split: Split, features: Sequence[Array]) -> Array | None:
        sent = Activations(self._bundle.digest, split.position, split.tail, tuple(features))
        reply = client.run(sent, bits=split.bits, per_channel=split.per_channel, compress=split.compress)
        return self._noted(Splitting, reply)

    def _run_tail(
        self, client: TailClient, position: int, tail: tuple[Edge, ...], features: Sequence[Array]
    ) -> Array | None:
        reply = client.run(Activations(self._bundle.digest, position, tail, tuple(features)))
        return self._noted(Splitting, reply)

    def _split_unfit(self, split: Split) -> str | None:
        if split.is_whole:
            return self._asking_unfit(split.server)
        return self._tail_unfit(split.server, split.position)

    def _tail_unfit(self, server: RemoteRef, position: int) -> str | None:
        return why_unfit(None if self._tail is None else self._tail.model, server, sends_inputs=position == 0)

    def _client_of(self, server: RemoteRef) -> AskClient | None:
        """The client of the model that a plan names; of one that names none the first."""
        return next((one for one in self._asking if server.is_named(one.model.model)), None)

    def _asking_unfit(self, server: RemoteRef) -> str | None:
        client = self._client_of(server) or next(iter(self._asking), None)
        return why_unfit(None if client is None else client.model, server, sends_inputs=True)

    def _noted(self, event: type[Escalating] | type[Splitting], reply: RemoteReply) -> Array | None:
        """The reply's output; the log says when a server stops answering, and when it answers again."""
        answering = reply.failure is None
        with self._lock:
            changed = self._answering.get(event) is not answering
            self._answering[event] = answering
        if changed:
            self._log.write(event(answering=answering, failure=reply.failure))
        return reply.output


def _sources(plan: Plan, outcome: Outcome) -> list[str]:
    if not plan.exits and plan.split is None and not isinstance(plan.hard, Cascade):
        return [SUBNET] * len(outcome.output)
    names = [*(f"exit {choice.exit}" for choice in plan.exits), SUBNET, SERVER, FALLBACK, ABSTAINED, CASCADE]
    return [names[number] for number in outcome.answered_by]


def _at_end(plan: Plan, policy: Abstain | Ask, outcome: Outcome) -> npt.NDArray[np.bool_]:
    """Mask [batch] of the samples that the decider judges: those that ended here; to abstain, the server's too."""
    if plan.split is None:
        return outcome.answered_by == len(plan.exits) + AT_END
    ends = (AT_END, AFTER_FAILURE, AT_SERVER) if isinstance(policy, Abstain) else (AT_END, AFTER_FAILURE)
    return np.isin(outcome.answered_by - len(plan.exits), ends)


def _chosen(raw: Raw | None, positions: npt.NDArray[np.intp]) -> RawBatch | None:
    """The samples at ``positions`` as they can travel: texts, or images [n, h, w, channels]; None for others."""
    if isinstance(raw, str):
        return [raw]
    if isinstance(raw, Sequence) or (isinstance(raw, np.ndarray) and raw.dtype.kind in "UO"):
        texts = [str(one) for one in (raw[int(position)] for position in positions) if isinstance(one, str)]
        return texts if len(texts) == len(positions) else None
    if not isinstance(raw, np.ndarray):
        return None
    if raw.ndim == 4:
        return raw[positions]
    return raw.reshape(1, *raw.shape[:2], -1)
