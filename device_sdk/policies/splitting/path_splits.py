"""Where to split a subnet between a device and a server; pure.

Source: Auto-Split (KDD 2021) §3 and §4: the end-to-end latency of a split is that of the device's part, of packing and
sending what is live at the cut, and of unpacking it and running the rest at the server (Eq. 1); all splits are
compared, also the whole on the device or at the server.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from device_sdk.offload.packing import BITS, can_travel, packet_bytes
from device_sdk.policies.splitting.handling import NO_HANDLING as NO_HANDLING
from device_sdk.policies.splitting.handling import Handling
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class SplitCost:
    """One way to divide a subnet: the device runs up to cut point ``position``, the server what follows.

    ``position`` N: all on the device, nothing is sent. ``tail``: what the server runs; ``bits``: of the values of each
    tensor on the way. Latencies are predicted, at batch 1; ``handling_ms``: what a call takes beside the other parts.
    ``device_bytes``: weights and the largest working set of the device's part, without the rest of the subnet.
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

    @property
    def latency_ms(self) -> float:
        """End to end."""
        there_ms = self.transfer_ms + self.handling_ms + self.unpacking_ms + self.server_ms
        return self.device_ms + self.packing_ms + there_ms


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
) -> list[SplitCost]:
    """All ways to divide ``subnet``, by position and width, the whole on the device last.

    Heads with blocks that ``device`` has no costs of are left out: they are not there.

    ``overhead_bytes``: what the protocol adds to a packet; ``sends_input``: whether the input itself may travel;
    ``widths``: bits of the values on the way. The server runs the rest of the subnet, or the original blocks from there
    on where it lacks a rendition of that rest.
    """
    found = []
    for count in range(len(subnet.edges) + 1):
        head, tail = subnet.edges[:count], subnet.edges[count:]
        if any(edge not in device.edge_costs for edge in head):
            break
        position = supernet.block(head[-1].block).end if head else 0
        here = SplitCost(
            position=position,
            device_ms=max(device.latency_along_ms(head), 0.0) if head else 0.0,
            transfer_ms=0.0,
            server_ms=0.0,
            bytes_sent=0,
            device_bytes=device.peak_bytes(Subnet(head)) if head else 0,
        )
        if not tail:
            found.append(here)
            continue
        tail = _server_tail(supernet, tail, position, server)
        if tail and can_travel(supernet.cut_points[position]) and (sends_input or position):
            found += _sent(supernet, here, tail, server, uplink, overhead_bytes, widths, handling)
    return found


def _sent(
    supernet: Supernet,
    here: SplitCost,
    tail: tuple[Edge, ...],
    server: CostModel,
    uplink: Uplink,
    overhead_bytes: int,
    widths: Sequence[int],
    handling: Handling,
) -> Iterator[SplitCost]:
    """``here`` with the way to the server, once for each width."""
    cut = supernet.cut_points[here.position]
    values = sum(spec.size for spec in cut.tensors)
    for width in widths:
        bits = (width,) * len(cut.tensors)
        size = packet_bytes(cut, tail, batch=1, bits=bits) + overhead_bytes
        yield SplitCost(
            position=here.position,
            device_ms=here.device_ms,
            packing_ms=values * handling.packing_ms_per_value,
            transfer_ms=uplink.transfer_ms(size),
            handling_ms=handling.beside_codec_ms(size),
            unpacking_ms=values * handling.unpacking_ms_per_value,
            server_ms=max(server.latency_along_ms(tail), 0.0),
            bytes_sent=size,
            tail=tail,
            bits=bits,
            device_bytes=here.device_bytes,
        )


def _server_tail(supernet: Supernet, own: tuple[Edge, ...], position: int, server: CostModel) -> tuple[Edge, ...]:
    """The first of these that the server has: the rest of the device's subnet, the original blocks; else nothing."""
    originals = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= position)
    return next((tail for tail in (own, originals) if all(edge in server.edge_costs for edge in tail)), ())


def best_split(costs: Sequence[SplitCost]) -> SplitCost:
    """The least end-to-end latency; of equals the one that sends least."""
    return min(costs, key=lambda cost: (cost.latency_ms, cost.bytes_sent))
