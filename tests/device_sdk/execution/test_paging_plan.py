from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from device_sdk.errors import BudgetError
from device_sdk.execution.pager import Piece, footprint, least_cap_bytes, leaves_first, pages
from device_sdk.supernet.plan import Edge

MB = 1_000_000


def piece(number: int, size_mb: float, *, working_mb: float = 0.5, shared_mb: float = 0.0) -> Piece:
    weights = {f"blob {number}": round(size_mb * MB)} | ({"shared": round(shared_mb * MB)} if shared_mb else {})
    return Piece(Edge(f"o{number}"), None, weights, round(working_mb * MB))


@st.composite
def paths(draw):
    """Stretches of pieces of random sizes; some pieces share a blob."""
    sizes = st.tuples(st.integers(0, 400), st.integers(0, 200), st.booleans())
    stretches = draw(st.lists(st.lists(sizes, max_size=8), min_size=1, max_size=3).filter(any))
    numbers = iter(range(100))
    return [
        [piece(next(numbers), s / 100, working_mb=w / 100, shared_mb=0.7 * shared) for s, w, shared in stretch]
        for stretch in stretches
    ]


def every(stretches):
    return [piece for stretch in stretches for piece in stretch]


@given(paths(), st.integers(0, 4000))
def test_pages_keep_every_block_in_order_and_each_fits_the_cap_alone(stretches, spare):
    cap_bytes = least_cap_bytes(every(stretches)) + spare * 10_000
    divided = pages(stretches, cap_bytes)
    assert [[piece for page in part for piece in page] for part in divided] == stretches
    assert all(page and footprint(page).least_bytes <= cap_bytes for part in divided for page in part)


@given(paths())
def test_below_the_least_cap_nothing_runs_and_the_error_says_what_would(stretches):
    least = least_cap_bytes(every(stretches))
    with pytest.raises(BudgetError, match="too small: block o") as caught:
        pages(stretches, least - 1)
    stated = float(caught.value.hint.split()[-2])
    assert pages(stretches, round(stated * MB))


@given(paths())
def test_with_room_for_all_each_stretch_is_one_page(stretches):
    divided = pages(stretches, 10_000 * MB)
    assert [len(part) for part in divided] == [1 if stretch else 0 for stretch in stretches]


@settings(derandomize=True)
@given(paths(), st.integers(0, 4000))
def test_a_larger_cap_never_makes_more_pages_load_again(stretches, spare):
    """Loads of ten calls, one after the other."""
    cap_bytes = least_cap_bytes(every(stretches)) + spare * 10_000
    loads = [simulated_loads(flat(pages(stretches, cap)), cap, leaves_first) for cap in (cap_bytes, 4 * cap_bytes)]
    assert loads[1] <= loads[0]


def flat(divided):
    return [page for part in divided for page in part]


def simulated_loads(packed, cap_bytes, order, *, calls: int = 10) -> int:
    """How often pages are loaded if ``calls`` pass all pages and ``order`` says who leaves."""
    prints = [footprint(page) for page in packed]
    resident: list[int] = []  # the last used at the end
    loads = 0
    for _ in range(calls):
        for at, one in enumerate(prints):
            if at not in resident:
                loads += 1
                for leaving in order(list(resident), at=at):
                    if sum(prints[n].resident_bytes for n in resident) + one.loading_bytes <= cap_bytes:
                        break
                    resident.remove(leaving)
            else:
                resident.remove(at)
            resident.append(at)
            assert sum(prints[n].resident_bytes for n in resident) <= cap_bytes
    return loads


def least_recently_used(resident, *, at):
    return resident


@given(st.integers(2, 14), st.integers(16, 80))
def test_of_equal_pages_never_more_are_loaded_again_than_by_leaving_out_the_least_recently_used(count, cap_mb):
    packed = [[piece(number, 2.5)] for number in range(count)]
    ours, theirs = (simulated_loads(packed, cap_mb * MB, order) for order in (leaves_first, least_recently_used))
    assert count <= ours <= theirs


def test_a_path_twice_as_large_as_the_cap_keeps_what_fits_where_least_recently_used_keeps_nothing():
    packed = [[piece(number, 3.0)] for number in range(14)]
    ours, theirs = (simulated_loads(packed, 40 * MB, order) for order in (leaves_first, least_recently_used))
    assert theirs == 10 * 14
    assert ours <= 0.6 * theirs


def test_what_was_just_passed_leaves_first_and_what_comes_next_last():
    assert leaves_first([0, 1, 2, 4, 5, 6], at=3) == [2, 1, 0, 6, 5, 4]
    assert leaves_first([2, 0], at=2) == [0]


def test_blobs_that_blocks_of_a_page_share_count_once():
    alone, together = piece(0, 1.0, shared_mb=2.0), [piece(n, 1.0, shared_mb=2.0) for n in range(3)]
    saved = 3 * footprint([alone]).loading_bytes - footprint(together).loading_bytes
    assert saved >= 2 * 5 * 2 * MB


def test_where_all_can_stay_pages_are_as_large_as_that_allows():
    blocks = [piece(number, 1.0) for number in range(20)]
    assert [len(page) for page in flat(pages([blocks], 130 * MB))] == [20]  # 100 MB while it is loaded
    assert max(len(page) for page in flat(pages([blocks], 60 * MB))) > 1
    assert [len(page) for page in flat(pages([blocks], 10 * MB))] == [1] * 20
