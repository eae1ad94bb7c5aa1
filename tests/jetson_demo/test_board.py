from __future__ import annotations

import sys
import time

import pytest

from jetson_demo.board import Board, BoardWatch, Tegrastats, read_board
from tests.jetson_demo.test_tegrastats import ORIN

COOL = Board("nvpmodel 15W", 48.0, held_back=False)
HOT = Board("nvpmodel 15W", 97.0, held_back=True)
FASTER = Board("nvpmodel MAXN", 50.0, held_back=False)


class Bench:
    """A watch over boards that a test sets, with a clock that it moves."""

    def __init__(self, board: Board) -> None:
        self.board, self.now_s = board, 100.0
        self.watch = BoardWatch(lambda: self.board, clock=lambda: self.now_s)

    def change(self, board: Board, *, after_s: float):
        self.board, self.now_s = board, self.now_s + after_s
        return self.watch.change()


@pytest.fixture
def bench():
    return Bench(COOL)


def test_another_power_mode_counts_at_once(bench):
    change = bench.change(FASTER, after_s=1.0)
    assert change is not None
    assert change.text == "the power mode is now nvpmodel MAXN"
    assert not change.profile_again  # a profile is kept per power mode
    assert bench.change(FASTER, after_s=1.0) is None


def test_heat_counts_once_it_has_lasted(bench):
    assert [bench.change(HOT, after_s=1.0) for _ in range(5)] == [None] * 5
    change = bench.change(HOT, after_s=1.0)
    assert change is not None
    assert change.text == "the board is held back by its heat"
    assert change.profile_again
    assert bench.change(HOT, after_s=60.0) is None


def test_a_board_that_cools_down_counts_as_well(bench):
    bench = Bench(HOT)
    assert bench.change(COOL, after_s=1.0) is None
    change = bench.change(COOL, after_s=6.0)
    assert change is not None
    assert change.text == "the board has cooled down"


def test_heat_that_comes_and_goes_is_left_alone(bench):
    boards = [HOT, HOT, COOL] * 10
    assert all(bench.change(board, after_s=1.5) is None for board in boards)


def test_it_looks_at_most_once_a_second(bench):
    assert bench.change(FASTER, after_s=0.5) is None
    assert bench.watch.board == COOL
    assert bench.change(FASTER, after_s=0.5) is not None


def test_the_state_is_read_from_the_systems_files(tmp_path):
    write(tmp_path, "etc/nvpmodel.conf", "< POWER_MODEL ID=1 NAME=7W >\n")
    write(tmp_path, "var/lib/nvpmodel/status", "pmode:0001 fmode:quiet\n")
    write(tmp_path, "sys/class/thermal/thermal_zone0/temp", "61500\n")
    write(tmp_path, "sys/class/thermal/cooling_device0/type", "cpufreq-cpu0\n")
    write(tmp_path, "sys/class/thermal/cooling_device0/cur_state", "3\n")
    board = read_board(tmp_path)
    assert board == Board("nvpmodel 7W", 61.5, held_back=True)
    assert str(board) == "nvpmodel 7W, 62 °C, held back by its heat"


def write(root, name, text):
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(text)


def test_tegrastats_states_the_temperature_where_the_files_do_not():
    program = [sys.executable, "-c", f"import time; print({ORIN!r}, flush=True); time.sleep(60)"]
    with Tegrastats(program) as tegrastats:
        ends_s = time.monotonic() + 20
        while tegrastats.hottest_c() is None and time.monotonic() < ends_s:
            time.sleep(0.01)
        watch = BoardWatch(lambda: Board("unknown", None, held_back=False), hottest_c=tegrastats.hottest_c)
        assert watch.board.hottest_c == 49.25


def test_without_tegrastats_there_is_no_temperature_and_no_error():
    with Tegrastats(["no-such-program"]) as tegrastats:
        assert tegrastats.hottest_c() is None
