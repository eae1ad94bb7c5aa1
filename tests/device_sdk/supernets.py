"""Small supernets without a bundle, as builders and hypothesis strategies."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from hypothesis import strategies as st

from device_sdk.supernet.blocks import Block, CutPoint, Golden, Rendition, TensorSpec
from device_sdk.supernet.cost import CostModel, EdgeCost
from device_sdk.supernet.supernet import Supernet

SupernetBuilder = Callable[..., Supernet]


def _rendition(name: str) -> Rendition:
    return Rendition(name, runtime="none", blob="0" * 64, size_bytes=1, golden=Golden((), 0.0))


def build(
    length: int,
    spans: Iterable[tuple[int, int]] = (),
    *,
    int8: Iterable[str] = (),
    tensors: int = 1,
    values: int = 4,
) -> Supernet:
    """Originals o0 … and merged blocks m<start>_<end>; ``int8``: ids with a second rendition."""
    int8 = set(int8)

    def block(name: str, start: int, end: int) -> Block:
        renditions = (_rendition("fp32"), _rendition("int8")) if name in int8 else (_rendition("fp32"),)
        kind = "original" if end == start + 1 else "merged"
        return Block(name, start, end, kind, parameters=1, macs=1, renditions=renditions)

    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{n}", (values,)) for n in range(tensors)))
        for index in range(length + 1)
    ]
    blocks = [block(f"o{index}", index, index + 1) for index in range(length)]
    blocks += [block(f"m{start}_{end}", start, end) for start, end in spans]
    return Supernet(cuts, blocks)


@st.composite
def supernet_strategy(draw: st.DrawFn, max_length: int = 5) -> Supernet:
    length = draw(st.integers(1, max_length))
    possible = [(i, j) for i in range(length) for j in range(i + 2, length + 1)]
    spans = draw(st.lists(st.sampled_from(possible), unique=True)) if possible else []
    names = [f"o{i}" for i in range(length)] + [f"m{i}_{j}" for i, j in spans]
    return build(length, spans, int8=draw(st.lists(st.sampled_from(names), unique=True, max_size=4)))


@st.composite
def priced_strategy(draw: st.DrawFn) -> tuple[Supernet, CostModel]:
    supernet = draw(supernet_strategy())
    eighths, sizes = st.integers(3, 80), st.integers(0, 20)  # latencies in eighths of 1 ms add up exactly
    costs = {}
    for edge in supernet.edges:
        latency_ms = draw(eighths) / 8
        costs[edge] = EdgeCost(latency_ms, latency_ms, draw(sizes) * 10**6, draw(sizes) * 10**6)
    offset_ms = draw(st.sampled_from([0.0, 0.5, -0.125]))
    return supernet, CostModel(costs, scale=draw(st.sampled_from([1.0, 0.5, 2.0])), offset_ms=offset_ms)
