"""Splits of a path: what handling adds, and what each costs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from device_sdk.offload.packing import BITS, can_travel, packet_bytes
from device_sdk.policies.splitting.head_renditions import Head
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import Edge, Subnet, without_homes
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class Handling:
    """``packing_ms_per_value`` here, ``unpacking_ms_per_value`` there; per call ``call_ms`` and ``ms_per_byte``.

    The last two are the time of real calls beyond all that is predicted for them: HTTP, queueing, framing.
    ``device_factor``: how many times slower the device codes packets than it did where ``PacketCoding`` was measured.
    """

    packing_ms_per_value: float = 0.0
    unpacking_ms_per_value: float = 0.0
    call_ms: float = 0.0
    ms_per_byte: float = 0.0
    device_factor: float = 1.0

    def beside_codec_ms(self, size_bytes: int) -> float:
        """Overhead of a call that sends ``size_bytes``, without packing and unpacking."""
        return self.call_ms + self.ms_per_byte * size_bytes

    def slowed(self, factor: float) -> Handling:
        """The same for a device ``factor`` times slower: it packs so much slower."""
        return replace(
            self,
            packing_ms_per_value=factor * self.packing_ms_per_value,
            device_factor=factor * self.device_factor,
        )


NO_HANDLING = Handling()


@dataclass(frozen=True)
class JpegCoding:
    """An input sent as JPEG: its mean size, and the time to encode it here and to decode and prepare it there.

    ``pixels``: the same of the image as it is, fitted to the model's input; None where that is not offered.
    """

    size_bytes: int
    encoding_ms: float = 0.0
    decoding_ms: float = 0.0
    pixels: JpegCoding | None = None

    def slowed(self, factor: float) -> JpegCoding:
        """The same for a device ``factor`` times slower."""
        pixels = None if self.pixels is None else self.pixels.slowed(factor)
        return replace(self, encoding_ms=factor * self.encoding_ms, pixels=pixels)


@dataclass(frozen=True)
class PacketCoding:
    """Costs of packets in some bits, measured on private samples: means of bytes, medians of times, one sample each.

    ``packing_factor``, ``unpacking_factor``: times relative to 8 bits and one range, as in ``Handling``. The lossless
    stage takes ``deflating_ms`` here and ``inflating_ms`` there, and leaves ``deflated_bytes`` of the ``packed_bytes``
    of codes. ``error``: noise to signal.
    """

    error: float
    packing_factor: float
    unpacking_factor: float
    packed_bytes: float
    deflated_bytes: float
    deflating_ms: float
    inflating_ms: float


CodingOf = Callable[[int, int, bool], PacketCoding | None]
"""The coding at a cut point, in bits per value, with ranges per channel or one range; None: not measured."""


@dataclass(frozen=True)
class TimedCall:
    """A real call: bytes sent, excess over its predicted time, and its time in all."""

    size_bytes: int
    excess_ms: float
    took_ms: float = 1.0


def fit_calls(calls: Sequence[TimedCall], *, least_per_byte: float = 0.0) -> tuple[float, float]:
    """Milliseconds per call, not negative, and per byte, at least ``least_per_byte``, that explain the excess best.

    Errors count relative to the time of the calls.
    """
    if not calls:
        return 0.0, 0.0
    sizes, excess, took = np.array([(one.size_bytes, one.excess_ms, one.took_ms) for one in calls], dtype=np.float64).T
    weights = 1 / took
    slope = float(np.polyfit(sizes, excess, 1, w=weights)[0]) if np.ptp(sizes) > 0 else 0.0
    per_byte = max(slope, least_per_byte)
    per_call = float(np.average(excess - per_byte * sizes, weights=np.square(weights)))
    if per_call >= 0:
        return per_call, per_byte
    weighted = sizes * np.square(weights)
    return 0.0, max(float((excess * weighted).sum() / (sizes * weighted).sum()), least_per_byte)


def corrected(uplink: Uplink, handling: Handling) -> tuple[Uplink, Handling]:
    """The same with the handling's time per byte moved into the uplink's bandwidth, where it belongs."""
    per_byte_ms = ms_per_byte(uplink) + handling.ms_per_byte
    mbps = uplink.mbps * ms_per_byte(uplink) / per_byte_ms
    return Uplink(mbps, uplink.round_trip_ms), replace(handling, ms_per_byte=0.0)


def ms_per_byte(uplink: Uplink) -> float:
    """Milliseconds that each byte adds to a transfer."""
    return uplink.transfer_ms(1) - uplink.transfer_ms(0)


def not_measured(position: int, bits: int, per_channel: bool) -> PacketCoding | None:
    """The coding where no samples measured it."""
    return None


@dataclass(frozen=True)
class SplitCost:
    """One way to divide a subnet: the device runs up to cut point ``position``, the server the rest.

    ``position`` N: all on the device, nothing is sent. ``head``, ``tail``: the edges that device and server run;
    ``bits`` per value, for each tensor sent. ``sends``: a packet of activations, or at position 0 the input as JPEG or
    as pixels, which the server's full model takes; then ``bits`` is empty, and coding counts as packing.
    ``per_channel``, ``compress``: of the packet; compressed, ``bytes_sent`` is a mean. Latencies are predicted,
    at batch 1; ``handling_ms``: time of a call beyond the other parts. ``device_bytes``: weights, once loaded, and the
    largest working set of the device's part, without the rest of the subnet; ``stored_bytes``: its weights in the
    bundle. ``error``: the sum of quantisation errors, used only for ranking.
    """

    position: int
    device_ms: float
    transfer_ms: float
    server_ms: float
    bytes_sent: int
    tail: tuple[Edge, ...] = ()
    bits: tuple[int, ...] = ()
    packing_ms: float = 0.0
    unpacking_ms: float = 0.0
    handling_ms: float = 0.0
    device_bytes: int = 0
    stored_bytes: int = 0
    head: tuple[Edge, ...] = ()
    error: float = 0.0
    sends: Literal["activations", "jpeg", "images"] = "activations"
    per_channel: bool = False
    compress: bool = False

    @property
    def latency_ms(self) -> float:
        """End to end."""
        there_ms = self.transfer_ms + self.handling_ms + self.unpacking_ms + self.server_ms
        return self.device_ms + self.packing_ms + there_ms

    @property
    def coding(self) -> str:
        """Bits and coding of the packet in words."""
        words = ["per channel"] * self.per_channel + ["deflated"] * self.compress
        return ", ".join([f"in {self.bits[0]} bits", *words])


def split_costs(
    supernet: Supernet,
    subnet: Subnet,
    *,
    device: CostModel,
    server: CostModel,
    uplink: Uplink,
    overhead_bytes: int = 0,
    sends_input: bool = True,
    widths: Sequence[int] = (BITS,),
    handling: Handling = NO_HANDLING,
    heads: Sequence[Sequence[Head]] | None = None,
    coding: CodingOf = not_measured,
    jpeg: JpegCoding | None = None,
) -> list[SplitCost]:
    """All ways to divide ``subnet``, by position, head and width, the whole on the device last.

    Heads with blocks that ``device`` has no costs of are left out: they are not there.

    ``overhead_bytes``: added to a packet by the protocol; ``sends_input``: the input itself may be sent; ``widths``:
    bits per value sent; ``coding``: what packets cost and lose. Where it is known, fewer than 8 bits also go with
    ranges per channel, and packets are deflated where that is faster. ``heads``: of the first n blocks, by n; by
    default as the subnet has them. ``jpeg``: cost of the input as JPEG, where it can be sent so. The server runs the
    rest of the subnet, in the originals' precision where it has that, or the original blocks from there on where it
    lacks a rendition of the rest.
    """
    found: list[SplitCost] = []
    if jpeg is not None and sends_input:
        found += _sent_as_image(supernet, server, uplink, overhead_bytes, handling, jpeg)
    for count in range(len(subnet.edges) + 1):
        own, tail = subnet.edges[:count], without_homes(subnet.edges[count:])
        if any(edge not in device.edge_costs for edge in own):
            break
        position = supernet.block(own[-1].block).end if own else 0
        ends = [_device_part(position, head) for head in (heads[count] if heads else [_own(own, subnet.edges, device)])]
        if not tail:
            found += ends
            continue
        tail = _server_tail(supernet, tail, position, server)
        if tail and can_travel(supernet.cut_points[position]) and (sends_input or position):
            for here in ends:
                found += _sent(supernet, here, tail, server, uplink, overhead_bytes, widths, handling, coding)
    return found


def _own(edges: tuple[Edge, ...], whole: tuple[Edge, ...], device: CostModel) -> Head:
    if not edges:
        return Head()
    return Head(edges, device.part_latency_ms(edges, whole), device_bytes=device.peak_bytes(Subnet(edges)))


def _device_part(position: int, head: Head) -> SplitCost:
    return SplitCost(
        position=position,
        device_ms=head.device_ms,
        transfer_ms=0.0,
        server_ms=0.0,
        bytes_sent=0,
        device_bytes=head.device_bytes,
        stored_bytes=head.stored_bytes,
        head=head.edges,
        error=head.error,
    )


def _sent_as_image(
    supernet: Supernet, server: CostModel, uplink: Uplink, overhead_bytes: int, handling: Handling, jpeg: JpegCoding
) -> Iterator[SplitCost]:
    """The full model at the server, where its costs there are known: the input as JPEG, and as pixels."""
    whole = supernet.original.edges
    if not all(edge in server.edge_costs for edge in whole):
        return
    ways: list[tuple[Literal["jpeg", "images"], JpegCoding | None]] = [("jpeg", jpeg), ("images", jpeg.pixels)]
    for sends, coding in ways:
        if coding is None:
            continue
        size = coding.size_bytes + overhead_bytes
        yield SplitCost(
            position=0,
            device_ms=0.0,
            packing_ms=coding.encoding_ms,
            transfer_ms=uplink.transfer_ms(size),
            handling_ms=handling.beside_codec_ms(size),
            unpacking_ms=coding.decoding_ms,
            server_ms=max(server.latency_along_ms(whole), 0.0),
            bytes_sent=size,
            tail=whole,
            sends=sends,
        )


def _sent(
    supernet: Supernet,
    here: SplitCost,
    tail: tuple[Edge, ...],
    server: CostModel,
    uplink: Uplink,
    overhead_bytes: int,
    widths: Sequence[int],
    handling: Handling,
    coding: CodingOf,
) -> Iterator[SplitCost]:
    """``here`` with the call to the server, once for each width and kind of range, deflated where that is faster."""
    cut = supernet.cut_points[here.position]
    values = sum(spec.size for spec in cut.tensors)
    there = replace(here, tail=tail, server_ms=server.part_latency_ms(tail, supernet.original.edges))
    has_channels = any(len(spec.shape) > 1 for spec in cut.tensors)
    for width, per_channel in ((width, each) for width in widths for each in (False, True)):
        known = coding(here.position, width, per_channel)
        if per_channel and (known is None or width == BITS or not has_channels):
            continue
        bits = (width,) * len(cut.tensors)
        size = packet_bytes(cut, tail, batch=1, bits=bits, per_channel=per_channel) + overhead_bytes
        sent = replace(
            there,
            packing_ms=values * handling.packing_ms_per_value,
            unpacking_ms=values * handling.unpacking_ms_per_value,
            bits=bits,
            per_channel=per_channel,
        )
        if known is None:
            yield _crossing(sent, size, uplink, handling)
            continue
        sent = replace(sent, error=here.error + known.error)
        yield min(_coded(sent, size, known, uplink, handling), key=lambda cost: cost.latency_ms)


def _coded(
    sent: SplitCost, size: int, known: PacketCoding, uplink: Uplink, handling: Handling
) -> tuple[SplitCost, SplitCost]:
    """``sent`` as it is, and deflated."""
    packing_ms, unpacking_ms = known.packing_factor * sent.packing_ms, known.unpacking_factor * sent.unpacking_ms
    plain = replace(sent, packing_ms=packing_ms, unpacking_ms=unpacking_ms)
    deflated = replace(
        plain,
        packing_ms=packing_ms + handling.device_factor * known.deflating_ms,
        unpacking_ms=unpacking_ms + known.inflating_ms,
        compress=True,
    )
    less = round(size - known.packed_bytes + known.deflated_bytes)
    return _crossing(plain, size, uplink, handling), _crossing(deflated, less, uplink, handling)


def _crossing(sent: SplitCost, size: int, uplink: Uplink, handling: Handling) -> SplitCost:
    """``sent`` with the transfer of ``size`` bytes."""
    return replace(
        sent,
        transfer_ms=uplink.transfer_ms(size),
        handling_ms=handling.beside_codec_ms(size),
        bytes_sent=size,
    )


def _server_tail(supernet: Supernet, own: tuple[Edge, ...], position: int, server: CostModel) -> tuple[Edge, ...]:
    """The first of these that the server has: the rest of the device's subnet in the original renditions, that rest as
    it is, the original blocks; else nothing.
    """
    precise = tuple(Edge(edge.block, supernet.block(edge.block).renditions[0].name, edge.input_size) for edge in own)
    ways = (precise, own, supernet.originals_from(position))
    return next((tail for tail in ways if all(edge in server.edge_costs for edge in tail)), ())


def best_split(costs: Sequence[SplitCost]) -> SplitCost:
    """The split of least end-to-end latency; of equals the one that sends least."""
    return min(costs, key=lambda cost: (cost.latency_ms, cost.bytes_sent))
