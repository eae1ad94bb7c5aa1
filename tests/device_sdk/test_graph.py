from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.errors import ManifestError, UsageError
from device_sdk.graph import Block, CutPoint, Edge, Exit, Golden, Rendition, Subnet, Supernet, TensorSpec

FP32 = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0))


def block(name, start, end, kind="original", renditions=(FP32,)):
    return Block(name, start, end, kind, parameters=0, macs=0, renditions=renditions)


def cuts(count, mandatory=()):
    return [
        CutPoint(index, (TensorSpec(f"cut_{index}", (2,)),), mandatory=index in mandatory) for index in range(count)
    ]


CHAIN = [block("o0", 0, 1), block("o1", 1, 2), block("o2", 2, 3)]


@pytest.mark.parametrize(
    ("cut_points", "blocks", "message"),
    [
        ([CutPoint(0, ()), CutPoint(2, ())], [], "numbered 0 to N"),
        (cuts(4), [*CHAIN, block("o1", 0, 2, "merged")], "same id"),
        (cuts(4), [*CHAIN, block("m", 2, 4, "merged")], "block m runs from 2 to 4"),
        (cuts(4), [*CHAIN, block("m", 2, 2, "merged")], "block m runs from 2 to 2"),
        (cuts(4), [*CHAIN, block("m", 3, 1, "merged")], "block m runs from 3 to 1"),
        (cuts(4), [*CHAIN, block("m", -1, 1, "merged")], "block m runs from -1 to 1"),
        (cuts(4), [*CHAIN, block("m", 0, 2, "merged", ())], "block m has no rendition"),
        (cuts(4), [*CHAIN, block("m", 0, 2, "merged", (FP32, FP32))], "two renditions of one name"),
        (cuts(4, {2}), [*CHAIN, block("m", 1, 3, "merged")], "jumps over the mandatory cut point 2"),
        (cuts(4), [*CHAIN, block("s", 0, 2, "shrunk")], "block s is shrunk, but runs from 0 to 2"),
        (cuts(4), [*CHAIN, block("m", 0, 1, "merged")], "block m is merged, but runs from 0 to 1"),
        (cuts(4, {2}), [*CHAIN, block("i", 1, 3, "identity")], "jumps over the mandatory cut point 2"),
        (cuts(4), [CHAIN[0], CHAIN[2], block("m", 0, 3, "merged")], "do not make one path"),
    ],
)
def test_a_graph_that_is_none_is_refused(cut_points, blocks, message):
    with pytest.raises(ManifestError, match=message):
        Supernet(cut_points, blocks)


@pytest.mark.parametrize("position", [0, 3, -1, 7])
def test_an_exit_must_be_between_input_and_output(position):
    exit_ = Exit("e", position, "fc", parameters=0, macs=0, renditions=(FP32,))
    with pytest.raises(ManifestError, match="exit e"):
        Supernet(cuts(4), CHAIN, [exit_])


@pytest.mark.parametrize("end", [2, 3])
def test_an_identity_skips_a_span_of_any_length(end):
    supernet = Supernet(cuts(4), [*CHAIN, block("i", 1, end, "identity")])
    supernet.check(Subnet((Edge("o0"), Edge("i"), *(Edge(f"o{k}") for k in range(end, 3)))))


def test_a_block_may_end_at_a_mandatory_cut_point():
    supernet = Supernet(cuts(4, {2}), [*CHAIN, block("m", 0, 2, "merged")])
    supernet.check(Subnet((Edge("m"), Edge("o2"))))


def test_the_original_path_takes_the_first_rendition_of_each_original(build_supernet):
    supernet = build_supernet(3, [(0, 2)], int8=["o1"])
    assert supernet.original == Subnet((Edge("o0"), Edge("o1"), Edge("o2")))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (["o0", "o2"], "block o2 starts at cut point 2, not at 1"),
        (["o0", "o1"], "ends at cut point 2"),
        ([], "ends at cut point 0"),
        (["o0", "o1", "o2", "o2"], "starts at cut point 2, not at 3"),
        (["o0", "nothing"], "there is no block nothing"),
    ],
)
def test_check_names_what_is_wrong_with_a_path(build_supernet, edges, message):
    with pytest.raises(UsageError, match=message):
        build_supernet(3).check(Subnet(tuple(Edge(name) for name in edges)))


def test_check_refuses_a_rendition_that_is_not_there(build_supernet):
    with pytest.raises(UsageError, match="block o0 has no rendition int8"):
        build_supernet(1).check(Subnet((Edge("o0", "int8"),)))


@given(data=st.data())
def test_check_accepts_every_path(supernets, all_subnets, data):
    supernet = data.draw(supernets)
    for subnet in all_subnets(supernet):
        supernet.check(subnet)


@given(data=st.data())
def test_edges_from_lists_every_rendition_once_at_its_start(supernets, data):
    supernet = data.draw(supernets)
    listed = [(edge, start, end) for start, leaving in enumerate(supernet.edges_from) for edge, end in leaving]
    expected = [
        (Edge(block.id, rendition.name), block.start, block.end)
        for block in supernet.blocks
        for rendition in block.renditions
    ]
    assert sorted(listed) == sorted(expected)
    assert supernet.edges == tuple(edge for edge, _, _ in listed)


def test_cut_points_and_subnets_describe_themselves():
    cut = CutPoint(1, (TensorSpec("a", (3, 2)), TensorSpec("b", (4,), dtype="int8"), TensorSpec("c", ())))
    assert cut.nbytes == 24 + 4 + 4
    subnet = Subnet((Edge("stem"), Edge("m1_3", "int8")))
    assert str(subnet) == "stem m1_3@int8"
    assert subnet.block_ids == ("stem", "m1_3")
