from __future__ import annotations

import pytest
import torch

from device_sdk.errors import StorageError
from packager.errors import ResumeError
from packager.output.checkpoints import Checkpoints, encode_description, require_same_run

RUN = {"model": "m", "recipe": {"seed": 0, "steps": None}}


def test_a_fresh_run_has_no_state_and_leaves_no_trace_before_it_begins(tmp_path):
    checkpoints = Checkpoints(tmp_path / "work", RUN)
    assert checkpoints.state is None
    assert not (tmp_path / "work").exists()


def test_a_process_that_does_not_lead_reads_and_writes_nothing(tmp_path):
    leading = Checkpoints(tmp_path / "work", RUN)
    leading.begin()
    leading.save({"phase": "distil"})
    before = {path: path.read_bytes() for path in (tmp_path / "work").iterdir()}
    following = Checkpoints(tmp_path / "work", {"of": "whatever"}, leads=False)
    assert following.state is None
    following.begin()
    following.save({"phase": "tune"})
    assert {path: path.read_bytes() for path in (tmp_path / "work").iterdir()} == before


def test_saved_state_comes_back_bit_for_bit(tmp_path):
    tensor = torch.randn(3, generator=torch.Generator().manual_seed(0))
    checkpoints = Checkpoints(tmp_path / "work", RUN)
    checkpoints.begin()
    checkpoints.save({"phase": "distil", "blocks": {"m": {"w": tensor}}, "done": 5})
    checkpoints.save({"phase": "tune", "blocks": {"m": {"w": tensor * 2}}, "done": 7})
    state = Checkpoints(tmp_path / "work", RUN).state
    assert state is not None
    assert (state["phase"], state["done"]) == ("tune", 7)
    assert torch.equal(state["blocks"]["m"]["w"], tensor * 2)
    assert {path.name for path in (tmp_path / "work").iterdir()} == {"run.json", "state.pt"}


def test_time_of_earlier_runs_is_counted(tmp_path):
    first = Checkpoints(tmp_path / "work", RUN)
    first.begin()
    first.save({})
    state = torch.load(tmp_path / "work" / "state.pt", weights_only=True)
    torch.save(state | {"seconds": 500.0}, tmp_path / "work" / "state.pt")
    assert 500 <= Checkpoints(tmp_path / "work", RUN).seconds < 600


def test_another_run_is_refused_and_loses_nothing(tmp_path):
    first = Checkpoints(tmp_path / "work", RUN)
    first.begin()
    first.save({"done": 5})
    before = {path.name: path.read_bytes() for path in (tmp_path / "work").iterdir()}
    with pytest.raises(ResumeError, match="belongs to another run: model, recipe differ") as caught:
        Checkpoints(tmp_path / "work", {"model": "n", "recipe": {"seed": 1}})
    assert "--restart" in str(caught.value.hint)
    assert {path.name: path.read_bytes() for path in (tmp_path / "work").iterdir()} == before


@pytest.mark.parametrize("name", ["state.pt", "run.json"])
@pytest.mark.parametrize("damage", [lambda data: data[: len(data) // 2], lambda data: b"", lambda data: b"\xff" * 50])
def test_damaged_files_say_how_to_start_afresh(tmp_path, name, damage):
    first = Checkpoints(tmp_path / "work", RUN)
    first.begin()
    first.save({"done": 5})
    path = tmp_path / "work" / name
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ResumeError, match=rf"{name}.* cannot be read") as caught:
        Checkpoints(tmp_path / "work", RUN)
    assert "--restart" in str(caught.value.hint)
    assert "\n" not in str(caught.value)


def test_a_description_may_say_more_than_is_asked_for(tmp_path):
    (tmp_path / "run.json").write_bytes(encode_description(RUN | {"seconds": 3.5}))
    require_same_run(tmp_path / "run.json", RUN)


@pytest.mark.parametrize("content", [b"[]", b"7", b"null"])
def test_a_description_that_is_no_object_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(ResumeError):
        require_same_run(tmp_path / "run.json", RUN)


def test_a_folder_that_cannot_be_made_is_told_at_the_beginning(tmp_path):
    (tmp_path / "file").write_text("")
    checkpoints = Checkpoints(tmp_path / "file" / "work", RUN)
    with pytest.raises(StorageError, match="cannot write"):
        checkpoints.begin()


def test_finished_work_is_removed(tmp_path):
    checkpoints = Checkpoints(tmp_path / "work", RUN)
    checkpoints.begin()
    checkpoints.save({})
    checkpoints.remove()
    assert list(tmp_path.iterdir()) == []
