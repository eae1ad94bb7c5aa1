"""Cut points of all members in one numbering."""

from __future__ import annotations

import itertools

from packager.family.numbering import acyclic, numbered

DEPTHS = [[0.0, 0.2, 0.4, 0.6, 1.0], [0.0, 0.3, 0.5, 1.0]]


def test_all_members_share_input_and_output():
    numbering = numbered(DEPTHS)
    assert [own[0] for own in numbering.places] == [0, 0]
    assert numbering.places[0][4] == numbering.places[1][3] == numbering.output == 6


def test_inner_cut_points_are_numbered_by_depth_without_gaps():
    numbering = numbered(DEPTHS)
    inner = [numbering.of((member, cut)) for member, cut in ((0, 1), (1, 1), (0, 2), (1, 2), (0, 3))]
    assert inner == [1, 2, 3, 4, 5]


def test_every_edge_leads_to_a_higher_number():
    edges = [((1, 2), (0, 1)), ((0, 2), (1, 2))]  # the first leads back in depth
    kept = acyclic(DEPTHS, edges)
    assert kept == (edges[0],)  # with both: 0.1 → 0.2 → 1.2 → 0.1
    numbering = numbered(DEPTHS, kept)
    for start, end in kept:
        assert numbering.of(start) < numbering.of(end)
    for own in numbering.places:
        numbers = [own[cut] for cut in sorted(own)]
        assert all(a < b for a, b in itertools.pairwise(numbers))


def test_edges_in_both_directions_stay_where_they_make_no_cycle():
    edges = [((0, 1), (1, 1)), ((1, 1), (0, 2)), ((0, 3), (1, 2))]
    assert acyclic(DEPTHS, edges) == tuple(edges)
    numbering = numbered(DEPTHS, edges)
    assert all(numbering.of(start) < numbering.of(end) for start, end in edges)


def test_a_member_without_inner_cut_points_has_its_ends():
    numbering = numbered([[0.0, 0.5, 1.0], [0.0, 1.0]])
    assert numbering.places == ({0: 0, 1: 1, 2: 2}, {0: 0, 1: 2})
