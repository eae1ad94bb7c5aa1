from __future__ import annotations

import pytest

from device_sdk.logs.adaptation_log import AdaptationLog, Delivered, Infeasible, Opened, PlanChosen, Profiled
from jetson_demo.events import RunEvents, describe

OPENED = Opened(subnet="o0", restored=False)
PROFILED = Profiled(original_ms=2.5, scale=1.0, offset_ms=0.0, median_error=0.01)


@pytest.fixture
def log(tmp_path) -> AdaptationLog:
    return AdaptationLog(tmp_path / "log.jsonl", bundle="0" * 64, runtime="test")


def test_only_what_this_run_wrote_is_shown(log):
    log.write(OPENED)
    events = RunEvents(log.path)
    assert events.texts() == ()
    log.write(PROFILED)
    [text] = events.texts()
    assert text.endswith("profiled: the full model takes 2.5 ms")
    log.write(OPENED)
    assert len(events.texts()) == 2


def test_a_log_that_is_not_there_yet_or_broken_shows_nothing(log):
    events = RunEvents(log.path)
    assert events.texts() == ()
    log.path.write_text("{broken\n")
    assert events.texts() == ()


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (OPENED, "opened"),
        (Delivered("downloaded", 3, 5, 100, 0, None), "bundle version 3 downloaded"),
        (Infeasible(1.0, None, "o0 m1-4 o4", 1.75), "nothing fits the budget; the nearest takes 1.75 ms"),
        (
            PlanChosen("exits", "o0", "latency_ms", {}, 9, 20, 0.9, 1.0, None, 0.0, 0.61, 0.0, 0.0, ()),
            "chose exits: 61% expected to leave early",
        ),
    ],
)
def test_events_are_told_in_a_few_words(event, text):
    assert describe(event) == text
