from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from device_sdk.delivery.blobs import next_step, request_headers, strong_etag

POSITIONS = st.integers(1, 10**12)


def test_a_first_request_asks_for_everything():
    assert request_headers(0, '"x"') == {"Accept-Encoding": "identity"}


def test_a_later_one_asks_for_the_rest_of_the_same_thing():
    assert request_headers(7, '"x"') == {"Accept-Encoding": "identity", "Range": "bytes=7-", "If-Range": '"x"'}
    assert "If-Range" not in request_headers(7, None)


@pytest.mark.parametrize(("etag", "strong"), [('"x"', '"x"'), ('W/"x"', None), ("x", None), ('""', None), ('"', None)])
def test_only_a_strong_etag_names_bytes(etag, strong):
    assert strong_etag({"etag": etag}) == strong


def test_a_reply_without_an_etag_has_none():
    assert strong_etag({}) is None


@given(POSITIONS)
def test_a_whole_body_replaces_what_is_there(offset):
    assert next_step(200, {}, offset=offset) == "replace"
    assert next_step(200, {}, offset=0) == "append"


@given(POSITIONS, POSITIONS, POSITIONS)
def test_a_part_is_appended_only_where_it_belongs(offset, start, length):
    headers = {"content-range": f"bytes {start}-{start + length}/*"}
    assert next_step(206, headers, offset=offset) == ("append" if start == offset else "again")
    assert next_step(206, {"content-range": f"bytes {offset}-{offset}/{offset + 1}"}, offset=offset) == "append"


@given(POSITIONS, POSITIONS)
def test_a_refused_range_means_complete_only_at_the_very_end(offset, total):
    headers = {"content-range": f"bytes */{total}"}
    assert next_step(416, headers, offset=offset) == ("complete" if total == offset else "again")
    assert next_step(416, {"content-range": f"bytes */{offset}"}, offset=offset) == "complete"


@given(st.sampled_from([206, 416]), st.text(max_size=40), st.integers(0, 100))
def test_nonsense_never_counts_as_bytes_or_as_complete(status, text, offset):
    assert next_step(status, {"content-range": text}, offset=offset) == "again"
    assert next_step(status, {}, offset=offset) == "again"


@given(POSITIONS)
def test_an_end_in_the_place_of_a_part_is_no_part(offset):
    assert next_step(206, {"content-range": f"bytes */{offset}"}, offset=offset) == "again"
