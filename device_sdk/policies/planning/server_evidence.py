"""Evidence from servers: their answers to private samples, and the latency of the link to them."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.data.inputs import Inputs
from device_sdk.errors import PathweaveError, ProtocolError, TransferError, UsageError
from device_sdk.offload.agreement import RawBatch
from device_sdk.offload.asking import AskClient
from device_sdk.offload.client import request_overhead_bytes
from device_sdk.offload.remote_calls import default_transport
from device_sdk.offload.remote_model import LogarithmicPool, Privacy, RemoteModel
from device_sdk.offload.tail import TailClient, measure_uplink, server_profile
from device_sdk.policies.costs.evidence import Network
from device_sdk.policies.measured_splits.measuring import MOST_OF_A_BYTE, call_handling, codec_handling
from device_sdk.policies.splitting.path_splits import Handling, ms_per_byte, split_costs
from device_sdk.progress import Progress
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import RemoteRef

_TIMED = 7  # requests with one sample, whose median counts
_SIZED = 32  # samples, about, whose requests are encoded to know their mean size

RawSamples = Sequence[npt.NDArray[np.uint8]] | Sequence[str]
"""Samples before they were prepared, as they can travel: images [height, width, channels] of any sizes, or texts."""


@dataclass(frozen=True)
class Answered:
    """A server's model, its ``logits`` for all samples [count, classes], and how they are pooled with the device's."""

    server: RemoteRef
    logits: Array
    pool: LogarithmicPool | None = None


@dataclass(frozen=True)
class Servers:
    """Facts about the connected servers.

    ``answered``: the models that may be asked; ``tails``: the model that runs the rest of paths; ``privacy``: the most
    that may be sent; ``notes``: what could not be learned, and why.
    """

    privacy: Privacy = "never"
    network: Network | None = None
    answered: tuple[Answered, ...] = ()
    tails: RemoteRef | None = None
    notes: tuple[str, ...] = ()

    @property
    def asked(self) -> tuple[RemoteRef, ...]:
        """The models that may be asked."""
        return tuple(one.server for one in self.answered)

    @property
    def logits(self) -> Array | None:
        """The answers of the first model [count, classes]; None where no model may be asked."""
        return self.answered[0].logits if self.answered else None


def ask_servers(
    clients: Sequence[AskClient],
    tails: TailClient | None,
    bundle: Bundle,
    inputs: Inputs,
    raw: RawSamples | None,
    *,
    uplink: Uplink | None,
    progress: Progress,
) -> Servers:
    """Collect the answers of the models that may be asked, and measure the way to them and to the one that runs tails.

    Plans are made with one uplink: the quickest to any of the models. What another takes beyond it counts as time of
    its answers.

    What calls of tails take beside the way and the tail is measured with noise instead of activations. Nothing is sent
    that a model's privacy setting forbids. A server that does not answer is left out, with a note.

    Args:
        bundle: whose tails are run.
        inputs: all samples; ``raw``: the same before they were prepared, where they can travel so.
        uplink: planned with instead of the measured one.

    Raises:
        UsageError: of several models, some have other classes, inputs or outputs than the device.
    """
    servers, ways = Servers(), list[_Way]()
    _require_agreement(clients)
    for client in clients:
        if client.model.privacy == "inputs":
            servers = _with_answers(servers, ways, client, inputs, raw, progress)
    if ways:
        servers = replace(servers, privacy="inputs", network=_network(ways, uplink))
    if tails is not None and tails.model.privacy != "never":
        servers = _with_tails(servers, tails, bundle, uplink)
    return servers


def _require_agreement(clients: Sequence[AskClient]) -> None:
    """Models are compared by their answers, so all have to mean the same; one alone that misfits is left out."""
    asked = [one for one in clients if one.model.privacy == "inputs"]
    misfits = [(one.model.model, why) for one in asked if len(asked) > 1 and (why := one.misfit()) is not None]
    if misfits:
        raise UsageError(
            "the servers' models do not agree with the device's: "
            + "; ".join(f"{name}: {why}" for name, why in misfits),
            hint="connect models with the same classes in the same order",
        )


@dataclass(frozen=True)
class _Way:
    """The way to a model: the uplink, the milliseconds and bytes of one request, and what a name adds to it."""

    server: RemoteRef
    uplink: Uplink
    one_ms: float
    request_bytes: int
    overhead_bytes: int


def _network(ways: Sequence[_Way], given: Uplink | None) -> Network:
    """The quickest of the measured uplinks, or the given one, and what each server takes beside it."""
    nearest = min(ways, key=lambda way: way.uplink.transfer_ms(way.request_bytes))
    measured = nearest.uplink
    return Network(
        uplink=given or measured,
        answer_ms={way.server: max(way.one_ms - measured.transfer_ms(way.request_bytes), 0.0) for way in ways},
        input_bytes=ways[0].request_bytes,
        request_bytes={way.server: way.request_bytes for way in ways},
        overhead_bytes=ways[0].overhead_bytes,
    )


def _with_answers(
    servers: Servers,
    ways: list[_Way],
    client: AskClient,
    inputs: Inputs,
    raw: RawSamples | None,
    progress: Progress,
) -> Servers:
    """With the answers of a model; its way is added to ``ways``."""
    try:
        measured = _measured_uplink(client.model)
        logits = _all_answers(client, inputs, raw, progress)
        one_ms = _time_of_one_ms(client, inputs, raw)
    except PathweaveError as error:
        return replace(servers, notes=(*servers.notes, f"{client.model.model} is not asked: {error}"))
    size = _mean_request_bytes(client, inputs, raw)
    asked = RemoteRef(client.model.model, client.digest)
    ways.append(_Way(asked, measured, one_ms, size, request_overhead_bytes(client.model.model)))
    return replace(servers, answered=(*servers.answered, Answered(asked, logits, client.model.pool)))


def _with_tails(servers: Servers, client: TailClient, bundle: Bundle, uplink: Uplink | None) -> Servers:
    tails, name = client.model, bundle.manifest.name
    try:
        with contextlib.closing(default_transport(tails)) as transport:
            profile = server_profile(transport, tails.server, name)
            if profile.bundle != bundle.digest:
                raise ProtocolError("the server has another version of the bundle", hint="fetch the bundle again")
            measured = measure_uplink(transport, tails.server)
    except PathweaveError as error:
        return replace(servers, notes=(*servers.notes, f"no path is split: {error}"))
    overhead = request_overhead_bytes(tails.model)
    network = servers.network or Network(uplink=uplink or measured, overhead_bytes=overhead)
    privacy = "inputs" if "inputs" in (tails.privacy, servers.privacy) else tails.privacy
    costs = profile.cost_model()
    handling = _handling(client, bundle, costs, measured, overhead, is_given=uplink is not None)
    network = replace(network, server=costs, handling=handling)
    return replace(servers, privacy=privacy, network=network, tails=RemoteRef(tails.model, bundle.digest))


def _handling(
    client: TailClient, bundle: Bundle, costs: CostModel, measured: Uplink, overhead_bytes: int, *, is_given: bool
) -> Handling:
    """Time of real calls of the full model's tails beyond their parts, over the uplink as it is.

    ``is_given``: plans are made with another uplink, to whose bandwidth these calls say nothing.
    """
    subnet = bundle.supernet.original
    if any(edge not in costs.edge_costs for edge in subnet.edges):
        return codec_handling()
    ways = split_costs(
        bundle.supernet,
        subnet,
        device=costs,
        server=costs,
        uplink=measured,
        overhead_bytes=overhead_bytes,
        sends_input=False,
    )
    least_per_byte = 0.0 if is_given else -MOST_OF_A_BYTE * ms_per_byte(measured)
    found = call_handling(client, bundle.supernet, bundle.digest, ways, codec_handling(), least_per_byte=least_per_byte)
    return replace(found, ms_per_byte=0.0) if is_given else found


def _measured_uplink(model: RemoteModel) -> Uplink:
    with contextlib.closing(default_transport(model)) as transport:
        return measure_uplink(transport, model.server)


def _all_answers(client: AskClient, inputs: Inputs, raw: RawSamples | None, progress: Progress) -> Array:
    """Logits [count, classes] of all samples, in requests that each keep the model's time-out."""
    count, size = len(inputs), client.model.max_batch
    if raw is not None and len({image.shape for image in raw if isinstance(image, np.ndarray)}) > 1:
        size = 1  # images of several sizes
    found = []
    with progress.task("ask the server", count) as task:
        for start in range(0, count, size):
            stop = min(start + size, count)
            found.append(_answer(client, inputs.take(np.arange(start, stop)), _batch(raw, start, stop)))
            task.advance(stop - start)
    return np.concatenate(found)


def _time_of_one_ms(client: AskClient, inputs: Inputs, raw: RawSamples | None) -> float:
    def timed(number: int) -> float:
        tensor, batch = inputs.take(np.array([number])), _batch(raw, number, number + 1)
        started = time.perf_counter()
        _answer(client, tensor, batch)
        return (time.perf_counter() - started) * 1e3

    return median(timed(number % len(inputs)) for number in range(_TIMED))


def _mean_request_bytes(client: AskClient, inputs: Inputs, raw: RawSamples | None) -> int:
    """Of one sample; JPEGs differ in size."""
    places = range(0, len(inputs), max(1, len(inputs) // _SIZED))
    sizes = [client.request_bytes(inputs.take(np.array([at])), _batch(raw, at, at + 1)) for at in places]
    return round(sum(sizes) / len(sizes))


def _answer(client: AskClient, tensors: Array, raw: RawBatch | None) -> Array:
    reply = client.answer(tensors, raw)
    if reply.output is None:
        raise TransferError(f"the server does not answer: {reply.failure}")
    return reply.output


def _batch(raw: RawSamples | None, start: int, stop: int) -> RawBatch | None:
    """Texts, or images as [n, height, width, channels]; of different sizes only one fits."""
    if raw is None:
        return None
    images, texts = list[npt.NDArray[np.uint8]](), list[str]()
    for one in raw[start:stop]:
        if isinstance(one, str):
            texts.append(one)
        else:
            images.append(one if one.ndim == 3 else one[..., np.newaxis])
    return np.stack(images) if images else texts
