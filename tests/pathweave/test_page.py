from __future__ import annotations

from xml.etree import ElementTree

from pathweave.page import element, hint, label, page, picture, table


def test_attributes_are_written_as_svg_spells_them() -> None:
    written = element("line", x1=0, y1=1.23456, stroke_width=2.0, class_="axis")
    assert written == '<line x1="0" y1="1.23" stroke-width="2" class="axis"/>'


def test_plain_text_is_escaped_and_markup_kept() -> None:
    nasty = '<b> & "it\'s"'
    drawn = ElementTree.fromstring(picture(label(nasty, x=1), hint(nasty), width=10, height=5.0, name=nasty))
    assert [child.text for child in drawn] == [nasty, nasty]
    assert drawn.attrib == {"viewBox": "0 0 10 5", "width": "10", "role": "img", "aria-label": nasty}


def test_a_page_holds_its_title_style_and_body() -> None:
    whole = page("a < b", "<p>body</p>", style="p { color: red; }")
    assert whole.startswith("<!doctype html>")
    assert "<title>a &lt; b</title>" in whole
    assert "p { color: red; }</style>\n<p>body</p>" in whole


def test_a_table_escapes_its_columns() -> None:
    assert "<tr><th>a</th><th>&lt;</th></tr>\n<tr></tr>" in table(("a", "<"), ["<tr></tr>"])
