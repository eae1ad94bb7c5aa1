from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.supernet.plan import Ask, ExitChoice, MaxConfidence, Plan, RemoteRef
from jetson_demo.plan_drawing import (
    BARS,
    PlacedBlock,
    PlanOutline,
    draw_blocks,
    draw_cut_points,
    draw_exits,
    sparkline,
)

KINDS = ("original", "merged", "shrunk")


@st.composite
def outlines(draw: st.DrawFn) -> PlanOutline:
    """Paths of up to 60 blocks over up to 180 cut points, with up to three exits."""
    spans = draw(st.lists(st.integers(1, 3), min_size=1, max_size=60))
    blocks, at = [], 0
    for number, span in enumerate(spans):
        blocks.append(PlacedBlock(f"b{number}", draw(st.sampled_from(KINDS)), at, at + span))
        at += span
    positions = draw(st.lists(st.sampled_from([block.end for block in blocks]), unique=True, max_size=3))
    return PlanOutline(tuple(blocks), tuple((f"exit-at-{position}", position) for position in sorted(positions)))


@given(outlines(), st.integers(8, 200))
def test_every_row_fits_and_the_blocks_fill_theirs(outline, width):
    assert len("".join(text for text, _ in draw_blocks(outline, width=width))) == width
    assert len(draw_cut_points(outline, width=width)) <= width
    assert len(draw_exits(outline, width=width)) <= width


@given(outlines(), st.integers(8, 200))
def test_what_is_drawn_of_blocks_are_names_in_their_order(outline, width):
    drawn = "".join(text for text, _ in draw_blocks(outline, width=width))
    names = [part.strip("─═╌") for part in drawn.strip("│").split("│")]
    shown = iter(block.name for block in outline.blocks)
    assert all(name in shown for name in names if name)


OUTLINE = PlanOutline(
    (PlacedBlock("o0", "original", 0, 1), PlacedBlock("m1-4", "merged", 1, 4), PlacedBlock("s4", "shrunk", 4, 5)),
    (("x1", 1), ("x4-conv", 4)),
)


def test_blocks_stand_over_their_cut_points():
    assert "".join(text for text, _ in draw_blocks(OUTLINE, width=41)) == ("│───o0──│══════════m1-4═════════│╌╌╌s4╌╌│")
    assert draw_cut_points(OUTLINE, width=41) == "0       1                       4       5"
    assert draw_exits(OUTLINE, width=41) == "        ▲x1                     ▲x4-conv"


def test_an_exit_near_the_end_moves_left_to_be_read():
    assert draw_exits(OUTLINE, width=24) == "     ▲x1        ▲x4-conv"


def test_names_without_room_are_left_out():
    assert "".join(text for text, _ in draw_blocks(OUTLINE, width=11)) == "│─│═m1-4│╌│"


def test_an_outline_shows_the_plan(model):
    supernet = model.bundle.supernet
    outline = PlanOutline.of(supernet, Plan(supernet.original, exits=(ExitChoice("x2-pooled", 0.9),)))
    assert [block.name for block in outline.blocks] == ["o0", "o1", "o2", "o3", "o4"]
    assert {block.kind for block in outline.blocks} == {"original"}
    assert outline.exits == (("x2-pooled", 2),)


@given(st.lists(st.floats(0, 1e6), max_size=50), st.integers(1, 40))
def test_bars_show_the_last_values_and_grow_with_them(values, width):
    bars = sparkline(values, width=width)
    shown = values[-width:]
    assert len(bars) == len(shown)
    for one, other in zip(range(len(shown)), range(1, len(shown)), strict=False):
        if shown[one] <= shown[other]:
            assert BARS.index(bars[one]) <= BARS.index(bars[other])


@pytest.mark.parametrize(("values", "bars"), [([1, 2], "▁█"), ([3, 3, 3], "▁▁▁"), ([], "")])
def test_bars_go_from_the_lowest_to_the_highest(values, bars):
    assert sparkline(values, width=10) == bars


def test_an_exit_that_asks_a_server_is_marked(model):
    supernet = model.bundle.supernet
    exits = (ExitChoice("x1-pooled", 0.9), ExitChoice("x2-pooled", 0.9, ask_below=0.4))
    outline = PlanOutline.of(supernet, Plan(supernet.original, exits, hard=Ask(MaxConfidence(0.5), RemoteRef())))
    assert [name for name, _ in outline.exits] == ["x1-pooled", "x2-pooled?"]
