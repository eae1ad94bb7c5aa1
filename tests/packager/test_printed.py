"""What is printed of a bundle fits a screen."""

from __future__ import annotations

from packager.commands.inspecting import shortened


def test_short_notes_and_those_without_an_enumeration_stay_as_they_are():
    for note in ("not merged: blocks 1 to 3, 2 to 4", "long " * 100):
        assert shortened(note) == note


def test_a_long_enumeration_is_cut_between_entries_and_the_rest_counted():
    note = "left out: " + ", ".join(f"m{number}" for number in range(100))
    found = shortened(note, limit=40)
    assert found.startswith("left out: m0, m1, ")
    assert len(found) < 80
    shown = found.split(" and ")[0].count(", ") + 1
    assert found.endswith(f" and {100 - shown} more (all with --json)")
