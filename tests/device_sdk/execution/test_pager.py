from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import pytest

from device_sdk.errors import BlobError, RuntimeFailedError
from device_sdk.execution.pager import Footprint, Page, PagedStretch, Pager

PATIENCE_S = 20.0


@dataclass
class Ledger:
    """A runtime whose pages take what their footprints say and each add their number, in order. Counts the bytes."""

    footprints: list[Footprint]
    identity: str = "ledger-1"
    taken_bytes: int = 0
    peak_bytes: int = 0
    loads: list[int] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, size_bytes: int) -> None:
        with self.lock:
            self.taken_bytes += size_bytes
            self.peak_bytes = max(self.peak_bytes, self.taken_bytes)

    def load(self, number: int) -> LedgerPage:
        footprint = self.footprints[number]
        self.take(footprint.loading_bytes)
        self.loads.append(number)
        page = LedgerPage(self, number, footprint)
        self.take(footprint.resident_bytes - footprint.loading_bytes)
        return page


@dataclass
class LedgerPage:
    owner: Ledger
    number: int
    footprint: Footprint
    open: bool = True

    def run(self, inputs):
        assert self.open, "a page was closed under a call"
        self.owner.take(self.footprint.working_bytes)
        outputs = [10 * inputs[0] + self.number]
        self.owner.take(-self.footprint.working_bytes)
        assert self.open, "a page was closed under a call"
        return outputs

    def close(self):
        assert self.open, "a page was closed twice"
        self.open = False
        self.owner.take(-self.footprint.resident_bytes)


def make(*footprints: tuple[int, int, int], cap: int) -> tuple[Ledger, Pager]:
    """A pager over pages (loading, resident, working)."""
    ledger = Ledger([Footprint(*one) for one in footprints])
    pages = [Page(lambda number=number: number, one) for number, one in enumerate(ledger.footprints)]
    return ledger, Pager(ledger, pages, cap_bytes=cap)


def run(pager: Pager, *numbers: int) -> int:
    return int(PagedStretch(pager, numbers).run([np.array(0, np.int64)])[0])


def test_with_room_for_all_each_page_is_loaded_once():
    ledger, pager = make(*[(50, 10, 1)] * 4, cap=91)
    assert [run(pager, 0, 1, 2, 3) for _ in range(3)] == [123] * 3
    assert ledger.loads == [0, 1, 2, 3]
    assert pager.loads == 4


def test_a_page_that_just_ran_leaves_for_the_next_and_the_first_stay():
    ledger, pager = make(*[(50, 20, 1)] * 4, cap=80)
    run(pager, 0, 1, 2, 3)
    assert ledger.loads == [0, 1, 2, 3]
    run(pager, 0)
    assert ledger.loads == [0, 1, 2, 3]
    assert ledger.peak_bytes <= 80


def test_a_working_set_gets_its_room_too():
    ledger, pager = make((30, 30, 10), (30, 30, 50), cap=80)
    assert run(pager, 0, 1) == 1
    assert ledger.peak_bytes <= 80
    assert run(pager, 0, 1) == 1
    assert ledger.loads == [0, 1, 0]  # page 0 had to leave when page 1 ran, not the other way round


@pytest.mark.parametrize("cap", [70, 100, 160, 400])
def test_threads_get_right_answers_under_the_cap_and_no_page_is_closed_under_them(cap):
    ledger, pager = make(*[(50, 20, 15), (60, 25, 5), (10, 2, 40), (30, 30, 30), (70, 10, 1)] * 2, cap=cap)
    with ThreadPoolExecutor(6) as pool:
        answers = list(pool.map(lambda _: run(pager, *range(10)), range(120), timeout=PATIENCE_S))
    assert answers == [123456789] * 120
    assert ledger.peak_bytes <= cap
    assert pager.peak_bytes <= cap
    pager.close()
    assert ledger.taken_bytes == 0


def test_who_needs_room_waits_for_the_call_that_has_it():
    _, pager = make((50, 50, 20), (50, 50, 20), cap=80)
    with ThreadPoolExecutor(1) as pool:
        with pager.page(0):
            waiting = pool.submit(run, pager, 1)
            assert not threading.Event().wait(0.1)
            assert not waiting.done()
        assert waiting.result(PATIENCE_S) == 1


def test_after_a_failed_load_the_room_is_free_again_and_the_next_call_tries_again():
    failures = [BlobError("decayed"), RuntimeFailedError("no room")]

    def read():
        if failures:
            raise failures.pop(0)
        return 0

    ledger = Ledger([Footprint(50, 20, 5)])
    pager = Pager(ledger, [Page(read, ledger.footprints[0])], cap_bytes=50)
    with pytest.raises(BlobError):
        run(pager, 0)
    with pytest.raises(RuntimeFailedError):
        run(pager, 0)
    assert run(pager, 0) == 0
    pager.close()
    assert ledger.taken_bytes == 0


def test_a_call_that_fails_gives_its_page_back():
    _, pager = make((50, 20, 5), (50, 20, 5), cap=50)
    with pytest.raises(ZeroDivisionError), pager.page(0):
        raise ZeroDivisionError
    assert run(pager, 1) == 1


def test_closed_under_a_call_the_page_goes_when_the_call_ends():
    ledger, pager = make((50, 20, 5), (50, 20, 5), cap=100)
    run(pager, 1)
    with pager.page(0) as page:
        pager.close()
        pager.close()
        assert page.run([np.array(0)]) == [0]
    assert ledger.taken_bytes == 0
    with pytest.raises(RuntimeFailedError, match="closed"):
        run(pager, 0)
    assert ledger.taken_bytes == 0


def test_closing_wakes_who_waits_for_room():
    _, pager = make((50, 50, 20), (50, 50, 20), cap=80)
    with ThreadPoolExecutor(1) as pool, pager.page(0):
        waiting = pool.submit(run, pager, 1)
        threading.Event().wait(0.05)
        pager.close()
        with pytest.raises(RuntimeFailedError, match="closed"):
            waiting.result(PATIENCE_S)
