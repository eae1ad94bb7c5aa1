"""The board while the script runs: its power mode, its heat, and what of it changed."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from device_sdk.profiling.timing import power_mode, read_thermal
from jetson_demo.tegrastats import BoardLine, parse

_ROOT = Path("/")
_LOOK_S = 1.0
_STEADY_S = 5.0  # a board that is held back for a moment is not planned for
TEGRASTATS = ("tegrastats", "--interval", "1000")


@dataclass(frozen=True)
class Board:
    """The state at one moment. ``held_back``: whether the kernel limits a processor because of its heat."""

    power_mode: str
    hottest_c: float | None
    held_back: bool

    def __str__(self) -> str:
        heat = "" if self.hottest_c is None else f", {self.hottest_c:.0f} °C"
        return f"{self.power_mode}{heat}{', held back by its heat' if self.held_back else ''}"


def read_board(root: Path = _ROOT) -> Board:
    """The state now, from the files below ``root``."""
    thermal = read_thermal(root)
    return Board(power_mode(root), thermal.hottest_c, bool(thermal.held_back))


@dataclass(frozen=True)
class Change:
    """A change that outdates latencies. ``profile_again``: a stored profile does not tell the two states apart."""

    text: str
    profile_again: bool


class BoardWatch:
    """Looks at the board at most once a second, and tells when it has changed for good.

    A power mode counts at once, heat after five seconds. ``hottest_c`` stands in where the files state no temperature.
    """

    def __init__(
        self,
        read: Callable[[], Board] = read_board,
        *,
        hottest_c: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._read, self._hottest_c, self._clock = read, hottest_c, clock
        self._looked_s = clock()
        self._differs_since_s: float | None = None
        self.board = self._planned = self._look()

    def change(self) -> Change | None:
        """The change since the last one; None if nothing has changed, or too short a time ago."""
        now_s = self._clock()
        if 0 <= now_s - self._looked_s < _LOOK_S:
            return None
        self._looked_s = now_s
        self.board = board = self._look()
        if board.power_mode != self._planned.power_mode:
            self.planned()
            return Change(f"the power mode is now {board.power_mode}", profile_again=False)
        if board.held_back == self._planned.held_back:
            self._differs_since_s = None
            return None
        if self._differs_since_s is None:
            self._differs_since_s = now_s
        if now_s - self._differs_since_s < _STEADY_S:
            return None
        self.planned()
        does = "is held back by its heat" if board.held_back else "has cooled down"
        return Change(f"the board {does}", profile_again=True)

    def planned(self) -> None:
        """The board as it was last seen is what is planned for from now on."""
        self._planned, self._differs_since_s = self.board, None

    def _look(self) -> Board:
        board = self._read()
        if board.hottest_c is not None:
            return board
        return Board(board.power_mode, self._hottest_c(), board.held_back)


class Tegrastats:
    """The last line of a running ``tegrastats``, as a context; without the program there is none."""

    def __init__(self, command: Sequence[str] = TEGRASTATS) -> None:
        self._command = command
        self._process: subprocess.Popen[str] | None = None
        self._latest: BoardLine | None = None

    def __enter__(self) -> Tegrastats:
        if shutil.which(self._command[0]) is not None:
            with contextlib.suppress(OSError):
                self._process = subprocess.Popen(
                    self._command,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    stdin=subprocess.DEVNULL,
                    text=True,
                )
                threading.Thread(target=self._follow, args=[self._process], name="tegrastats", daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.terminate()
            self._process.wait()

    def hottest_c(self) -> float | None:
        """The highest temperature of the last line; None before the first."""
        return None if self._latest is None else self._latest.hottest_c

    def _follow(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self._latest = parse(line)
