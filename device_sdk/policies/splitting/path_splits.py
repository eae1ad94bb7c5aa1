"""Where to split a subnet between a device and a server; pure.

Source: Auto-Split (KDD 2021) §3 and §4: the end-to-end latency of a split is that of the device's part, of sending what
is live at the cut, and of the server's part; all splits are compared, also the whole on the device or at the server.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from device_sdk.offload.packing import can_travel, packet_bytes
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class SplitCost:
    """One way to divide a subnet: the device runs up to cut point ``position``, the server what follows.

    ``position`` N: all on the device, nothing is sent. ``tail``: what the server runs. Latencies are predicted, at
    batch 1.
    """

    position: int
    device_ms: float
    transfer_ms: float
    server_ms: float
    bytes_sent: int
    tail: tuple[Edge, ...] = ()

    @property
    def latency_ms(self) -> float:
        """End to end."""
        return self.device_ms + self.transfer_ms + self.server_ms


def split_costs(
    supernet: Supernet,
    subnet: Subnet,
    *,
    device: CostModel,
    server: CostModel,
    uplink: Uplink,
    overhead_bytes: int = 0,
    sends_input: bool = True,
) -> list[SplitCost]:
    """All ways to divide ``subnet``, by position, the whole on the device last.

    ``overhead_bytes``: what the protocol adds to a packet; ``sends_input``: whether the input itself may travel. The
    server runs the rest of the subnet, or the original blocks from there on where it lacks a rendition of that rest.
    """
    found = []
    for count in range(len(subnet.edges) + 1):
        head, tail = subnet.edges[:count], subnet.edges[count:]
        position = supernet.block(head[-1].block).end if head else 0
        device_ms = device.latency_along_ms(head) if head else 0.0
        if not tail:
            found.append(SplitCost(position, device_ms, 0.0, 0.0, 0))
            continue
        cut, tail = supernet.cut_points[position], _server_tail(supernet, tail, position, server)
        if tail and can_travel(cut) and (sends_input or position):
            size = packet_bytes(cut, tail, batch=1) + overhead_bytes
            server_ms = server.latency_along_ms(tail)
            found.append(SplitCost(position, device_ms, uplink.transfer_ms(size), server_ms, size, tail))
    return found


def _server_tail(supernet: Supernet, own: tuple[Edge, ...], position: int, server: CostModel) -> tuple[Edge, ...]:
    """The first of these that the server has: the rest of the device's subnet, the original blocks; else nothing."""
    originals = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= position)
    return next((tail for tail in (own, originals) if all(edge in server.edge_costs for edge in tail)), ())


def best_split(costs: Sequence[SplitCost]) -> SplitCost:
    """The least end-to-end latency; of equals the one that sends least."""
    return min(costs, key=lambda cost: (cost.latency_ms, cost.bytes_sent))
