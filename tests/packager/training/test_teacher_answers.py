from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from packager.supernet.expansion import expand
from packager.training.caches import TeacherAnswers

SHAPE = (10,)
A, B = (0, 7, 4), (3, 0, 4)


@pytest.fixture
def opened(tmp_path) -> Callable[..., TeacherAnswers]:
    """Answers from the file that earlier ones have written."""

    def open_(*, limit_bytes: int = 10_000) -> TeacherAnswers:
        return TeacherAnswers(tmp_path / "work" / "answers.f32", shape=SHAPE, limit_bytes=limit_bytes)

    return open_


def file_of(tmp_path: Path) -> Path:
    return tmp_path / "work" / "answers.f32"


def equal(found: torch.Tensor | None, expected: torch.Tensor) -> bool:
    return found is not None and torch.equal(found, expected)


def test_answers_outlive_what_kept_them(opened, noise):
    first, second = noise(4, 10), noise(4, 10)
    kept = opened()
    kept.put(A, first)
    kept.put(B, second)
    for answers in (kept, opened()):
        assert equal(answers.get(A), first)
        assert equal(answers.get(B), second)
        assert answers.get((0, 7, 2)) is None  # half the batch is another one


def test_what_was_cut_off_is_dropped_and_the_file_goes_on_from_there(opened, noise, tmp_path):
    first, second = noise(4, 10), noise(4, 10)
    kept = opened()
    kept.put(A, first)
    kept.put(B, second)
    whole = file_of(tmp_path).read_bytes()
    for cut in range(1, len(whole) // 2):
        file_of(tmp_path).write_bytes(whole[:-cut])
        found = opened()
        assert equal(found.get(A), first)
        assert found.get(B) is None
    opened().put(B, second)
    assert equal(opened().get(B), second)
    assert file_of(tmp_path).read_bytes() == whole


@given(st.data())
def test_a_changed_byte_never_changes_an_answer(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("answers") / "answers.f32"
    answers = TeacherAnswers(path, shape=SHAPE, limit_bytes=10_000)
    answers.put(A, torch.ones(4, 10))
    content = bytearray(path.read_bytes())
    content[data.draw(st.integers(0, len(content) - 1))] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    assert TeacherAnswers(path, shape=SHAPE, limit_bytes=10_000).get(A) is None


def test_no_more_than_the_limit_is_kept(opened, noise, tmp_path):
    kept = opened(limit_bytes=200)  # one record of 160
    kept.put(A, noise(4, 10))
    kept.put(B, noise(4, 10))
    assert kept.get(B) is None
    assert file_of(tmp_path).stat().st_size < 200
    assert opened(limit_bytes=100).get(A) is None


def test_without_room_on_the_disk_they_stay_in_memory(tmp_path, noise):
    (tmp_path / "file").write_bytes(b"")
    kept = TeacherAnswers(tmp_path / "file" / "answers.f32", shape=SHAPE, limit_bytes=10_000)
    first = noise(4, 10)
    kept.put(A, first)
    assert equal(kept.get(A), first)


def test_a_resumed_training_does_not_ask_the_teacher_again(tiny_traced, dying_source, run_training, monkeypatch):
    asked: list[int] = []
    features = type(tiny_traced).features

    def counted(self, images):
        asked.append(len(images))
        return features(self, images)

    monkeypatch.setattr(type(tiny_traced), "features", counted)
    choices = {"steps": 14, "variants": 1, "batch": 64, "distil_share": 0.0, "recalibrate_batches": 0}
    dying_source.dies_at = 9
    with pytest.raises(dying_source.Killed):
        run_training(expand(tiny_traced, max_span=2), dying_source, **choices)
    assert len(asked) == 4
    dying_source.dies_at = None
    run_training(expand(tiny_traced, max_span=2), dying_source, **choices)
    assert len(asked) == 4
