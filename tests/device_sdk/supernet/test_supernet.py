from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from device_sdk.errors import ManifestError, UsageError
from device_sdk.supernet.blocks import Block, CutPoint, Exit, Golden, InputSize, Member, Rendition, TensorSpec
from device_sdk.supernet.plan import (
    UNREACHABLE_CONFIDENCE,
    Abstain,
    Ask,
    Edge,
    ExitChoice,
    MaxConfidence,
    Plan,
    RemoteRef,
    Split,
    Subnet,
)
from device_sdk.supernet.supernet import Supernet

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


ANY = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0), any_size=True)
INT8 = Rendition("int8", "none", "1" * 64, 1, Golden((), 0.0))


def images(side):
    """Shapes at the cut points of a chain of three blocks; the second cut point has a pooled tensor too."""
    return (((3, side, side),), ((4, side, side),), ((4, side, side), (4, 1, 1)), ((5,),))


def sized(*sizes, blocks=None, exits=()):
    """Three originals, of which o1 has int8 only at the own size 8x8, and m0-2, at further input sizes."""
    cuts = [
        CutPoint(index, tuple(TensorSpec(f"cut_{index}_{n}", shape) for n, shape in enumerate(shapes)))
        for index, shapes in enumerate(images(8))
    ]
    merged = block("m0-2", 0, 2, "merged", (ANY,))
    chain = [block(f"o{k}", k, k + 1, renditions=(ANY, INT8)[: 1 + k % 2]) for k in range(3)]
    return Supernet(cuts, blocks or [*chain, merged], exits, sizes)


def size_of(side, **change):
    return InputSize(**{"size": (side, side), "shapes": images(side), "golden": Golden((), 0.0)} | change)


def test_inner_cut_points_are_nodes_once_per_input_size_and_the_ends_once():
    supernet = sized(size_of(4), size_of(16))
    assert (supernet.node_count, supernet.output_node) == (8, 7)
    assert [supernet.node(index) for index in range(4)] == [0, 1, 2, 7]
    assert [supernet.node(index, (4, 4)) for index in range(4)] == [0, 3, 4, 7]
    assert [supernet.node(index, (16, 16)) for index in range(4)] == [0, 5, 6, 7]
    assert supernet.nodes_of(Edge("o1", input_size=(16, 16))) == (5, 6)
    assert supernet.sizes == ((), (4, 4), (16, 16))


def test_with_one_input_size_a_node_is_a_cut_point():
    supernet = sized()
    assert [supernet.node(index) for index in range(supernet.node_count)] == [0, 1, 2, 3]
    assert supernet.any_size_original == supernet.original
    assert supernet.free_axes == {}


def test_edges_leave_for_every_size_at_which_their_rendition_runs():
    supernet = sized(size_of(4))
    small = {"input_size": (4, 4)}
    assert supernet.edges_from[0] == (
        (Edge("o0"), 1),
        (Edge("m0-2"), 2),
        (Edge("o0", **small), 3),
        (Edge("m0-2", **small), 4),
    )
    assert supernet.edges_from[1] == ((Edge("o1"), 2), (Edge("o1", "int8"), 2))
    assert supernet.edges_from[3] == ((Edge("o1", **small), 4),)
    assert supernet.edges_from[4] == ((Edge("o2", **small), 5),)


def test_the_ends_of_an_edge_have_the_shapes_of_its_size():
    supernet = sized(size_of(4))
    start, end = supernet.ends(Edge("m0-2", input_size=(4, 4)))
    assert [spec.shape for spec in (*start.tensors, *end.tensors)] == [(3, 4, 4), (4, 4, 4), (4, 1, 1)]
    assert supernet.ends(Edge("m0-2")) == (supernet.cut_points[0], supernet.cut_points[2])
    assert supernet.free_axes["cut_2_0"] == {2, 3}
    assert supernet.free_axes["cut_2_1"] == supernet.free_axes["cut_3_0"] == frozenset()


def test_the_original_at_any_size_takes_the_first_renditions_that_run_there():
    chain = [block(f"o{k}", k, k + 1, renditions=(INT8, ANY)) for k in range(3)]
    supernet = sized(size_of(4), blocks=chain)
    assert str(supernet.original) == "o0@int8 o1@int8 o2@int8"
    assert str(supernet.any_size_original) == "o0 o1 o2"
    supernet.check(supernet.any_size_original.at((4, 4)))


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ([size_of(4), size_of(4)], "listed twice"),
        ([size_of(8)], "or is the model's own"),
        ([size_of(4, shapes=images(4)[:3])], "4x4 does not give one shape per tensor"),
        ([size_of(4, shapes=(*images(4)[:2], ((4, 4, 4),), ((5,),)))], "4x4 does not give one shape per tensor"),
        ([size_of(4, shapes=(*images(4)[:1], ((64,),), *images(4)[2:]))], "cut point 1 has other axes"),
        ([size_of(4, shapes=(((3, 5, 5),), *images(4)[1:]))], "4x4 has other ends"),
        ([size_of(4, shapes=(((1, 4, 4),), *images(4)[1:]))], "4x4 has other ends"),
        ([size_of(4, shapes=(*images(4)[:3], ((6,),)))], "4x4 has other ends"),
    ],
)
def test_an_input_size_that_does_not_fit_the_cut_points_is_refused(sizes, message):
    with pytest.raises(ManifestError, match=message):
        sized(*sizes)


def test_every_original_runs_at_every_input_size():
    chain = [block("o0", 0, 1, renditions=(ANY,)), block("o1", 1, 2), block("o2", 2, 3, renditions=(ANY,))]
    with pytest.raises(ManifestError, match="block o1 runs at no other input size"):
        sized(size_of(4), blocks=chain)
    sized(blocks=chain)


def at(*names, size=(4, 4)):
    return tuple(Edge(*name.split("@"), input_size=size) for name in names)


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        (at("o0", "o1", "o2", size=(5, 5)), "no input size 5x5"),
        (at("o0", "o1", "o2", size=(8, 8)), "no input size 8x8"),
        (at("o0", "o1", "o2", size=(4,)), "no input size 4"),
        (at("o0", "o1@int8", "o2"), "block o1@int8 runs only at the model's own input size"),
        (at("o0", "o1") + at("o2", size=()), "block o2 runs at another input size than those before it"),
        (at("m0-2", size=()) + at("o2"), "block o2 runs at another input size than those before it"),
        (at("o0", "o1"), "ends at cut point 2"),
    ],
)
def test_check_names_what_is_wrong_with_the_size_of_a_path(edges, message):
    with pytest.raises(UsageError, match=message):
        sized(size_of(4)).check(Subnet(edges))


def test_check_stretch_takes_a_part_of_a_path_at_any_known_size():
    supernet = sized(size_of(4))
    supernet.check_stretch(at("o1", "o2"), start=1, end=3)
    supernet.check_stretch(at("o1@int8", "o2", size=()), start=1, end=3)
    with pytest.raises(UsageError, match="another input size"):
        supernet.check_stretch((*at("o1"), Edge("o2")), start=1, end=3)


@pytest.mark.parametrize("ask", [lambda s: s.node(1, (5, 5)), lambda s: s.cut_points_at((5, 5))])
def test_an_unknown_input_size_is_named(ask):
    with pytest.raises(UsageError, match="the bundle has no input size 5x5"):
        ask(sized(size_of(4)))


def test_a_plans_exits_run_at_its_input_size_and_it_is_not_split():
    renditions = (ANY, INT8)
    exits = [Exit("any", 1, "fc", 0, 0, renditions), Exit("own", 2, "fc", 0, 0, (FP32,))]
    supernet = sized(size_of(4), exits=exits)
    small = Subnet(at("o0", "o1", "o2"))
    assert [one.id for one in supernet.exits_along(small.at(()))] == ["any", "own"]
    assert [one.id for one in supernet.exits_along(small)] == ["any"]
    supernet.check_plan(Plan(small, (ExitChoice("any", 0.5),)))
    for choice in (ExitChoice("any", 0.5, "int8"), ExitChoice("own", 0.5)):
        supernet.check_plan(Plan(small.at(()), (choice,)))
        with pytest.raises(UsageError, match=f"exit {choice.exit}@{choice.rendition} runs only at the model's own"):
            supernet.check_plan(Plan(small, (choice,)))
    with pytest.raises(UsageError, match="at a server"):
        supernet.check_plan(Plan(small, split=Split(1, (8,), at("o1", "o2"), RemoteRef())))


@pytest.mark.parametrize(
    ("ask_below", "threshold", "said"),
    [
        (0.6, 0.5, "asks below a confidence of 0.6; it must lie from 0 to the threshold, 0.5"),
        (-0.1, 0.5, "asks below a confidence of -0.1"),
        (math.nan, 0.5, "asks below a confidence of nan"),
        (math.inf, 0.5, "asks below a confidence of inf"),
        (0.1, -1.0, "it must lie from 0 to the threshold, -1"),
    ],
)
def test_an_exit_asks_below_a_confidence_from_0_to_its_threshold(ask_below, threshold, said):
    supernet = sized(exits=[Exit("x1", 1, "fc", 0, 0, (FP32,))])
    ask = Ask(MaxConfidence(0.5), RemoteRef())
    with pytest.raises(UsageError, match=said):
        supernet.check_plan(Plan(supernet.original, (ExitChoice("x1", threshold, ask_below=ask_below),), hard=ask))
    for fine in (ExitChoice("x1", 0.5, ask_below=0.5), ExitChoice("x1", UNREACHABLE_CONFIDENCE, ask_below=0.2)):
        supernet.check_plan(Plan(supernet.original, (fine,), hard=ask))
    supernet.check_plan(Plan(supernet.original, (ExitChoice("x1", -1.0),), hard=ask))


def test_an_exit_asks_only_in_a_plan_that_asks_and_only_what_its_path_has_passed():
    exits = [Exit(f"x{position}", position, "fc", 0, 0, (FP32,)) for position in (1, 2)]
    supernet = sized(exits=exits)
    tail, original = supernet.original.edges[2:], supernet.original

    def plan(exit_: str, **parts) -> Plan:
        return Plan(original, (ExitChoice(exit_, 0.5, ask_below=0.2),), **parts)

    with pytest.raises(UsageError, match="in a plan that asks none"):
        supernet.check_plan(plan("x1"))
    with pytest.raises(UsageError, match="in a plan that asks none"):
        supernet.check_plan(plan("x1", hard=Abstain(MaxConfidence(0.5))))
    ask = Ask(MaxConfidence(0.5), RemoteRef())
    with pytest.raises(UsageError, match="whose path goes on at one"):
        supernet.check_plan(plan("x1", hard=ask, split=Split(2, (8,), tail, RemoteRef())))
    sends = replace(ask, sends=2, tail=tail)
    supernet.check_plan(plan("x2", hard=sends))
    with pytest.raises(UsageError, match="at cut point 1 cannot send activations of cut point 2"):
        supernet.check_plan(plan("x1", hard=sends))


def test_a_subnet_goes_to_another_size_and_back():
    subnet = Subnet((Edge("o0"), Edge("m1-3", "int8")))
    small = subnet.at((160, 120))
    assert str(small) == "160x120: o0 m1-3@int8"
    assert (small.input_size, subnet.input_size, Subnet(()).input_size) == ((160, 120), (), ())
    assert small.block_ids == subnet.block_ids
    assert small != subnet == small.at(())


@pytest.mark.parametrize(
    ("edge", "text"),
    [
        (Edge("o0"), "o0"),
        (Edge("m1-3", "int8"), "m1-3@int8"),
        (Edge("o0", input_size=(160, 120)), "o0:160x120"),
        (Edge("m1-3", "int8", (1, 1)), "m1-3@int8:1x1"),
    ],
)
def test_an_edge_is_read_from_the_text_that_it_is_written_as(edge, text):
    assert str(edge) == text
    assert Edge.parse(text) == edge


@pytest.mark.parametrize("text", ["o0:x", "o0:4x", "o0:4 x4?", "o0@int8:four"])
def test_what_follows_the_colon_of_an_edge_is_a_size(text):
    with pytest.raises(ValueError, match="invalid literal"):
        Edge.parse(text)


def checking_s(count):
    """Processor time of checking ``count`` blocks that each jump over ``count`` cut points."""
    rendition = Rendition("fp32", "none", "0" * 64, 1, Golden((), 0.0))
    cuts = [CutPoint(index, (TensorSpec(f"cut_{index}", (1,)),)) for index in range(count + 1)]
    blocks = [Block(f"o{n}", n, n + 1, "original", 1, 1, (rendition,)) for n in range(count)]
    blocks += [Block(f"i{n}", 0, count, "identity", 1, 1, (rendition,)) for n in range(count)]
    start = time.thread_time()
    Supernet(cuts, blocks)
    return time.thread_time() - start


@pytest.mark.alone
def test_long_blocks_over_many_cut_points_are_checked_in_linear_time():
    """Each of them was compared with every cut point that it jumps over: 256 times as long for 16 times as many."""
    assert checking_s(16_000) < 64 * min(checking_s(1000) for _ in range(3))


# families


def family(*, members=None, extra=(), exits=()):
    """A large network 0 → 1 → 3 → 4 and a small one 0 → 2 → 4, with a stitch from 1 to 2."""
    blocks = [
        block("a.o0", 0, 1),
        block("a.o1", 1, 3),
        block("a.o2", 3, 4),
        block("b.o0", 0, 2),
        block("b.o1", 2, 4),
        block("stitch", 1, 2, "stitch"),
        *extra,
    ]
    members = members or [Member("a", ("a.o0", "a.o1", "a.o2")), Member("b", ("b.o0", "b.o1"), 0.5)]
    return Supernet(cuts(5), blocks, exits, members=members)


def test_further_members_with_exits_are_known():
    assert family().members_with_exits == ()
    of_the_first, of_the_second = (Exit(f"x{at}", at, "fc", 0, 0, (FP32,)) for at in (3, 2))
    assert family(exits=[of_the_first]).members_with_exits == ()
    supernet = family(exits=[of_the_first, of_the_second])
    assert supernet.members_with_exits == (supernet.originals[1],)


def test_each_member_has_an_original_path_and_the_first_is_the_full_model():
    supernet = family()
    assert [path.block_ids for path in supernet.originals] == [("a.o0", "a.o1", "a.o2"), ("b.o0", "b.o1")]
    assert supernet.original == supernet.originals[0] == supernet.originals_at(())[0]


def test_originals_lead_from_one_cut_point_of_a_member_to_another():
    supernet = family()

    def stretches(start, end):
        return [[one.id for one in stretch] for stretch in supernet.original_stretches(start, end)]

    assert stretches(0, 4) == [["a.o0", "a.o1", "a.o2"], ["b.o0", "b.o1"]]
    assert stretches(1, 4) == [["a.o1", "a.o2"]]
    assert stretches(1, 2) == []  # of two members
    assert [edge.block for edge in supernet.originals_from(2)] == ["b.o1"]
    assert [edge.block for edge in supernet.originals_from(0)] == ["a.o0", "a.o1", "a.o2"]


def test_paths_through_a_stitch_are_subnets():
    supernet = family()
    supernet.check(Subnet((Edge("a.o0"), Edge("stitch"), Edge("b.o1"))))
    assert supernet.replaced(supernet.block("stitch")) is None
    assert supernet.replaced(supernet.block("a.o1")) == 1


def test_blocks_replace_originals_of_their_member():
    family(extra=[block("m", 1, 4, "merged"), block("s", 2, 4, "shrunk")])
    for wrong in (block("m", 2, 4, "merged"), block("s", 1, 4, "shrunk"), block("m", 1, 2, "merged")):
        with pytest.raises(ManifestError, match=f"block {wrong.id} is {wrong.kind}, but runs from"):
            family(extra=[wrong])


def test_a_member_may_be_one_block():
    supernet = Supernet(
        cuts(3),
        [block("a.o0", 0, 1), block("a.o1", 1, 2), block("b.o0", 0, 2)],
        members=[Member("a", ("a.o0", "a.o1")), Member("b", ("b.o0",))],
    )
    assert [len(path.edges) for path in supernet.originals] == [2, 1]


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([Member("a", ("a.o0", "a.o1", "a.o2"))], "do not list each original block once"),
        ([Member("a", ("a.o0", "a.o1", "a.o2")), Member("b", ("b.o1", "b.o0"))], "do not make one path"),
        ([Member("a", ("a.o0", "b.o1")), Member("b", ("b.o0", "a.o1", "a.o2"))], "do not make one path"),
        ([Member("a", ("a.o0", "a.o1", "a.o2")), Member("a", ("b.o0", "b.o1"))], "same name"),
    ],
)
def test_members_that_are_no_paths_are_refused(members, message):
    with pytest.raises(ManifestError, match=message):
        family(members=members)


def test_a_cut_point_of_two_members_is_refused():
    blocks = [block("a.o0", 0, 1), block("a.o1", 1, 2), block("b.o0", 0, 1), block("b.o1", 1, 2)]
    members = [Member("a", ("a.o0", "a.o1")), Member("b", ("b.o0", "b.o1"))]
    with pytest.raises(ManifestError, match="just one member"):
        Supernet(cuts(3), blocks, members=members)


WITH_BOTTLENECK = [
    *(block("o0", 0, 1), block("o1", 1, 3), block("o2", 3, 4)),
    *(block("into", 1, 2, "encoder"), block("from", 2, 3, "decoder")),
]


def test_a_bottleneck_is_passed_by_no_original_path():
    supernet = Supernet(cuts(5), WITH_BOTTLENECK)
    assert supernet.bottlenecks == (2,)
    assert supernet.original == Subnet((Edge("o0"), Edge("o1"), Edge("o2")))
    assert supernet.originals_from(2) == (Edge("from"), Edge("o2"))
    supernet.check_plan(Plan(supernet.through(supernet.original, 2)))


def test_a_subnet_goes_through_a_bottleneck_that_begins_and_ends_on_it():
    supernet = Supernet(cuts(5), [*WITH_BOTTLENECK, block("m", 0, 3, "merged")])
    through = supernet.through(supernet.original, 2)
    assert through == Subnet((Edge("o0"), Edge("into"), Edge("from"), Edge("o2")))
    assert supernet.through(through, 2) == through
    assert supernet.through(supernet.original, 1) == supernet.original
    assert supernet.through(Subnet((Edge("m"), Edge("o2"))), 2) is None


@pytest.mark.parametrize(
    ("blocks", "message"),
    [
        (WITH_BOTTLENECK[:4], "no bottleneck and not one that just one member's"),
        ([*WITH_BOTTLENECK[:3], WITH_BOTTLENECK[4]], "just one encoder and one decoder"),
        ([*WITH_BOTTLENECK, block("again", 1, 2, "encoder")], "just one encoder and one decoder"),
        ([*WITH_BOTTLENECK, block("m", 2, 4, "merged")], "block m is merged, but runs from 2 to 4"),
        ([*WITH_BOTTLENECK, block("odd", 1, 3, "decoder")], "is decoder, but runs|one that just one"),
    ],
)
def test_a_bottleneck_has_one_encoder_and_one_decoder(blocks, message):
    with pytest.raises(ManifestError, match=message):
        Supernet(cuts(5), blocks)
