from __future__ import annotations

import os
import signal
import threading

import pytest

from device_sdk.energy import PowerModel
from jetson_demo.figures import Figures
from jetson_demo.image_folder import ImageFolder, find_images
from jetson_demo.running import group_size, run_frames, stop_on_interrupt


@pytest.fixture
def frames(model, photos):
    return list(ImageFolder(model, find_images(photos)).frames(loop=False, note=print))


def test_every_frame_is_answered_once_and_the_last_of_each_group_reported(model, frames):
    figures, reported = Figures(), []
    run_frames(
        model,
        iter(frames),
        PowerModel(busy_w=10),
        figures,
        stop=threading.Event(),
        on_group=lambda frame, answer: reported.append((frame.name, answer.labels[0], figures.frames)),
    )
    assert figures.frames == len(frames)
    assert reported[-1][0] == frames[-1].name
    assert reported[-1][1] == model.infer(frames[-1].tensor).labels[0]
    counts = [count for _, _, count in reported]
    assert counts == sorted(set(counts))
    assert counts[-1] == len(frames)


def test_energy_covers_the_answers_and_nothing_that_comes_between(model, frames):
    figures = Figures()
    meter = PowerModel(busy_w=10)
    run_frames(model, iter(frames), meter, figures, stop=threading.Event(), on_group=lambda *_: meter.power_w())
    assert figures.mj_per_frame >= 10 * figures.overall().mean_ms
    assert figures.mean_w == pytest.approx(10)


def test_it_stops_after_the_group_in_which_it_is_told_to(model, frames):
    figures, stop = Figures(), threading.Event()
    read = []

    def endless():
        for number in range(10**6):
            read.append(number)
            yield frames[number % len(frames)]

    def on_group(frame, answer):
        if figures.frames > 20:
            stop.set()

    run_frames(model, endless(), PowerModel(busy_w=10), figures, stop=stop, on_group=on_group)
    assert 20 < figures.frames < 60
    assert len(read) <= figures.frames + 1


def test_a_frame_that_no_exit_is_sure_to_answer_in_time_is_counted_as_missed(model, frames):
    figures, reported, stop = Figures(), [], threading.Event()
    meter = PowerModel(busy_w=1)
    run_frames(
        model, iter(frames[:3]), meter, figures, stop=stop, on_group=lambda *a: reported.append(a), deadline_ms=1e-4
    )
    assert (figures.missed, figures.frames, reported) == (3, 0, [])
    run_frames(model, iter(frames[:3]), meter, figures, stop=stop, on_group=lambda *_: None, deadline_ms=1e4)
    assert (figures.missed, figures.frames) == (3, 3)


def test_no_frames_are_no_answers(model):
    figures = Figures()
    run_frames(model, iter(()), PowerModel(busy_w=1), figures, stop=threading.Event(), on_group=lambda *_: None)
    assert figures.frames == 0


@pytest.mark.parametrize(("median_ms", "size"), [(0.0, 1), (0.1, 16), (15.6, 16), (50.0, 5), (250.0, 1), (9000.0, 1)])
def test_a_group_is_about_a_quarter_of_a_second(median_ms, size):
    assert group_size(median_ms) == size


def test_the_first_interrupt_asks_to_stop_and_the_second_interrupts():
    before = signal.getsignal(signal.SIGINT)
    with stop_on_interrupt() as stop:
        os.kill(os.getpid(), signal.SIGINT)
        assert stop.wait(5)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
