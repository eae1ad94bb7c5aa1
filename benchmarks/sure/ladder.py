"""The ladder: the original path in every rendition, at every input size. An enumeration of its own, as a rival."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from device_sdk.policies.confirmation import EQUAL_LATENCY
from device_sdk.supernet.blocks import Rendition
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

LARGEST = 2  # rungs per rendition and budget that are judged: accuracy rises with the input size


def ladder(supernet: Supernet) -> list[Subnet]:
    """All rungs; a block that lacks a rendition runs in fp32."""
    blocks = [supernet.block(block) for block in supernet.original.block_ids]
    names = dict.fromkeys(one.name for block in blocks for one in block.renditions)
    paths = []
    for name in names:
        edges = [Edge(block.id, name if _has(block.renditions, name) else "fp32") for block in blocks]
        paths += [Subnet(tuple(edges)).at(size) for size in supernet.sizes]
    known = set(supernet.edges)
    return list(dict.fromkeys(path for path in paths if known.issuperset(path.edges)))


def _has(renditions: Sequence[Rendition], name: str) -> bool:
    return any(one.name == name for one in renditions)


def keeps(ratio: float, budget_ratio: float) -> bool:
    """The budget, where latencies within 2 % are equal: for a choice. Rungs that it is compared with are within it."""
    return ratio <= EQUAL_LATENCY * budget_ratio


def worth_judging(
    ratios: Mapping[Subnet, float], budget_ratios: Sequence[float], rungs: Sequence[Subnet]
) -> list[Subnet]:
    """The rungs of the largest inputs in each rendition that are within a budget.

    ``ratios``: latencies relative to the full model's. Rungs of one rendition are compared by latency.
    """
    found: list[Subnet] = []
    for budget_ratio in budget_ratios:
        by_rendition: dict[tuple[str, ...], list[Subnet]] = {}
        for rung in rungs:
            if ratios[rung] <= budget_ratio:
                by_rendition.setdefault(tuple(edge.rendition for edge in rung.edges), []).append(rung)
        for fitting in by_rendition.values():
            found += sorted(fitting, key=lambda rung: -ratios[rung])[:LARGEST]
    return list(dict.fromkeys(found))
