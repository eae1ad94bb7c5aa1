"""Answers of tails to activations sent in few bits: both parts of a path run here, on private samples."""

from __future__ import annotations

import numpy as np

from device_sdk.data.inputs import Inputs, as_inputs, batches
from device_sdk.execution.workspace import Workspace
from device_sdk.offload.packing import can_travel, packet_bytes
from device_sdk.policies.measured_splits.measuring import as_received, run_all
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

WIDTHS = (6, 4, 2)  # bits; 8 lose nothing that counts
_TOGETHER = 128  # samples whose features are in memory at once
Received = dict[tuple[Subnet, int, tuple[int, ...]], Array]


def narrow_cuts(supernet: Supernet, subnet: Subnet) -> list[tuple[int, tuple[Edge, ...]]]:
    """Inner cut points along ``subnet`` at which fewer bytes travel than at all before, with the edges behind them.

    Source: the filter of Auto-Split Eq. 6.
    """
    found: list[tuple[int, tuple[Edge, ...]]] = []
    least = None
    for number, (_, block) in list(enumerate(supernet.walk(subnet)))[1:]:
        cut, tail = supernet.cut_points[block.start], subnet.edges[number:]
        if not can_travel(cut):
            continue
        size = packet_bytes(cut, tail, batch=1)
        if least is None or size < least:
            least = size
            found.append((block.start, tail))
    return found


def few_bits_ms(supernet: Supernet, subnet: Subnet, costs: CostModel) -> float:
    """Approximate time of ``answers_in_few_bits`` for one sample."""
    tails_ms = sum(costs.latency_along_ms(tail) for _, tail in narrow_cuts(supernet, subnet))
    return costs.latency_ms(subnet) + len(WIDTHS) * tails_ms


def answers_in_few_bits(workspace: Workspace, subnet: Subnet, inputs: Inputs | Array) -> Received:
    """Logits [count, classes] of ``subnet`` on ``inputs``, by narrow cut point and bits on the way."""
    found = [_answers(workspace, subnet, some) for some in batches(as_inputs(inputs), _TOGETHER)]
    return {key: np.concatenate([one[key] for one in found]) for key in found[0]}


def _answers(workspace: Workspace, subnet: Subnet, inputs: Array) -> Received:
    """The same for a few samples [count, *input]."""
    found: Received = {}
    features: tuple[Array, ...] = (inputs,)
    done = 0
    for position, tail in narrow_cuts(workspace.supernet, subnet):
        start = len(subnet.edges) - len(tail)
        features = run_all(workspace, subnet.edges[done:start], features)
        done = start
        for bits in WIDTHS:
            sent = tuple(as_received(tensor, bits) for tensor in features)
            found[subnet, position, (bits,) * len(sent)] = run_all(workspace, tail, sent)[-1]
    return found
