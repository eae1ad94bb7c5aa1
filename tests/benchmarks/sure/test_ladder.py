from __future__ import annotations

from benchmarks.sure.ladder import ladder, worth_judging
from device_sdk.supernet.blocks import Block, CutPoint, Golden, InputSize, Rendition, TensorSpec
from device_sdk.supernet.plan import Edge, Subnet
from device_sdk.supernet.supernet import Supernet

GOLDEN = Golden((), 0.0)


def rendition(name: str) -> Rendition:
    return Rendition(name, "onnxruntime", f"blob-{name}", 10, GOLDEN, any_size=True)


def supernet() -> Supernet:
    cuts = [CutPoint(0, (TensorSpec("cut_0", (3, 8, 8)),)), CutPoint(1, (TensorSpec("cut_1", (4, 8, 8)),))]
    cuts.append(CutPoint(2, (TensorSpec("cut_2", (5,)),)))
    both = (rendition("fp32"), rendition("int8"))
    blocks = [
        Block("o0", 0, 1, "original", 1, 1, both),
        Block("o1", 1, 2, "original", 1, 1, both[:1]),
        Block("m0", 0, 2, "merged", 1, 1, both),
    ]
    return Supernet(cuts, blocks, input_sizes=[InputSize((4, 4), (((3, 4, 4),), ((4, 4, 4),), ((5,),)), GOLDEN)])


def path(*renditions: str, size: tuple[int, ...] = ()) -> Subnet:
    return Subnet(tuple(Edge(f"o{k}", one, size) for k, one in enumerate(renditions)))


def test_the_ladder_has_the_original_path_in_every_rendition_at_every_size():
    assert ladder(supernet()) == [
        path("fp32", "fp32"),
        path("fp32", "fp32", size=(4, 4)),
        path("int8", "fp32"),
        path("int8", "fp32", size=(4, 4)),
    ]


def test_the_largest_rungs_of_each_rendition_within_a_budget_are_judged():
    full, half = path("fp32", "fp32"), path("fp32", "fp32", size=(4, 4))
    rungs = ladder(supernet())
    ratios = dict(zip(rungs, (1.0, 0.6, 0.55, 0.3), strict=True))
    assert worth_judging(ratios, [0.7], rungs) == [half, *rungs[2:]]
    assert worth_judging(ratios, [1.0], rungs) == [full, half, *rungs[2:]]
    assert worth_judging(ratios, [0.2], rungs) == []
