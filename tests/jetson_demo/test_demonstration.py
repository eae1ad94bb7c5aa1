"""A run while the board changes: the model is fitted again, or the plan in use stays."""

from __future__ import annotations

import itertools

import pytest

from device_sdk.energy import PowerModel
from device_sdk.logs.adaptation_log import Adapted, read_log
from jetson_demo.board import Board
from jetson_demo.demonstration import Fitting, Options, Run
from jetson_demo.events import RunEvents
from jetson_demo.image_folder import ImageFolder, find_images
from pathweave import AdaptiveModel

SLOW = Board("nvpmodel 7W", 50.0, held_back=False)
FAST = Board("nvpmodel MAXN", 50.0, held_back=False)
HOT = Board("nvpmodel 7W", 99.0, held_back=True)


@pytest.fixture
def model(tiny, tmp_path):
    with AdaptiveModel.open(tiny.folder, state_folder=tmp_path) as opened:
        yield opened


@pytest.fixture
def run(model, photos):
    """A fitted run; its clock moves by ten seconds with every look."""
    options = Options(
        source="", bundle=None, trust=None, token=None, data=None, latency_ratio=None, latency_ms=500.0, memory_mb=None,
        accuracy=None, deadline_ms=None, live=False, provider=None, threads=1, again=False, max_frames=80, loop=True,
        power_watts=1.0, state=None, as_json=True,
    )  # fmt: skip

    def build(*boards: Board, live: bool = False) -> tuple[Run, Options]:
        source = ImageFolder(model, find_images(photos))
        fitting = Fitting.of(model, source, options)
        fitting.fit_again(profile_again=False)
        if live:
            model.live.start()
        looks = itertools.chain(boards, itertools.repeat(boards[-1]))
        seconds = itertools.count(0, 10)
        meter, events = PowerModel(busy_w=1), RunEvents(model.log.path)
        made = Run(
            model, "cpu", source, fitting, meter, events, read_board=lambda: next(looks), clock=lambda: next(seconds)
        )
        return made, options

    return build


def adaptations(model) -> int:
    return sum(isinstance(line.event, Adapted) for line in read_log(model.log.path))


@pytest.mark.slow
def test_a_new_power_mode_is_adapted_to_while_it_runs(run, model):
    made, options = run(SLOW, SLOW, FAST)
    made.answer_all(options)
    summary = made.summary(options)
    assert summary["replanned"] == ["the power mode is now nvpmodel MAXN"]
    assert summary["frames"] == 80
    assert adaptations(model) == 2


@pytest.mark.slow
def test_lasting_heat_is_adapted_to_once(run, model):
    made, options = run(SLOW, HOT)
    made.answer_all(options)
    assert made.replanned == ["the board is held back by its heat"]
    assert adaptations(model) == 2


@pytest.mark.slow
def test_heat_is_left_to_live_update_where_that_runs(run, model, capsys):
    made, options = run(SLOW, HOT, live=True)
    made.answer_all(options)
    assert made.replanned == []
    assert adaptations(model) == 1
    assert "live update follows" in capsys.readouterr().err


@pytest.mark.slow
def test_where_nothing_fits_any_more_the_plan_in_use_stays(run, model, capsys):
    made, options = run(SLOW, FAST)
    made.fitting.options = Options(**{**vars(options), "latency_ms": 1e-4})
    plan = model.plan
    made.answer_all(options)
    assert made.replanned == []
    assert model.plan == plan
    assert "the plan in use stays" in capsys.readouterr().err


@pytest.mark.slow
def test_a_steady_board_is_left_alone(run, model):
    made, options = run(SLOW)
    made.answer_all(options)
    assert made.replanned == []
    assert adaptations(model) == 1
