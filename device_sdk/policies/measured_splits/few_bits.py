"""What tails answer to activations that travel in few bits: both parts of a path run here, on private samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import can_travel, packet_bytes
from device_sdk.policies.measured_splits.measuring import as_received, run_all
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

WIDTHS = (6, 4, 2)  # bits; 8 lose nothing that counts
Received = dict[tuple[Subnet, int, tuple[int, ...]], Array]


def narrow_cuts(supernet: Supernet, subnet: Subnet) -> list[int]:
    """Inner cut points along ``subnet`` at which fewer bytes travel than at all before (Auto-Split Eq. 6)."""
    found: list[int] = []
    least = None
    for number, (_, block) in list(enumerate(supernet.walk(subnet)))[1:]:
        cut = supernet.cut_points[block.start]
        if not can_travel(cut):
            continue
        size = packet_bytes(cut, subnet.edges[number:], batch=1)
        if least is None or size < least:
            least = size
            found.append(block.start)
    return found


def few_bits_ms(supernet: Supernet, subnet: Subnet, costs: CostModel) -> float:
    """What ``answers_in_few_bits`` takes for one sample, about."""
    tails = [edges for _, edges in _parts(supernet, subnet, narrow_cuts(supernet, subnet))]
    return costs.latency_ms(subnet) + len(WIDTHS) * sum(costs.latency_along_ms(tail) for tail in tails)


def answers_in_few_bits(workspace: Workspace, subnet: Subnet, inputs: Array) -> Received:
    """Logits [count, classes] of ``subnet`` on ``inputs`` [count, *input], by narrow cut point and bits on the way."""
    found: Received = {}
    features: tuple[Array, ...] = (inputs,)
    done = 0
    positions = narrow_cuts(workspace.supernet, subnet)
    for position, tail in _parts(workspace.supernet, subnet, positions):
        features = run_all(workspace, subnet.edges[done : len(subnet.edges) - len(tail)], features)
        done = len(subnet.edges) - len(tail)
        for bits in WIDTHS:
            sent = tuple(as_received(tensor, bits) for tensor in features)
            found[subnet, position, (bits,) * len(sent)] = run_all(workspace, tail, sent)[-1]
    return found


def _parts(supernet: Supernet, subnet: Subnet, positions: Sequence[int]) -> Iterator[tuple[int, tuple[Edge, ...]]]:
    """Each position with the edges behind it."""
    for number, (_, block) in enumerate(supernet.walk(subnet)):
        if block.start in positions:
            yield block.start, subnet.edges[number:]
