from __future__ import annotations

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

import torch

from benchmarks.tasks import trained_weights
from benchmarks.tasks.trained_weights import trained_file, with_weights


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Empty folders for zoo/ and for the work of a run."""
    made = SimpleNamespace(zoo=tmp_path / "zoo", work=tmp_path / "work")
    made.zoo.mkdir()
    made.work.mkdir()
    monkeypatch.setattr(trained_weights, "ZOO", made.zoo)
    return made


def options(folders, *, quick=False):
    return SimpleNamespace(quick=quick, work_folder=folders.work)


def test_what_zoo_has_is_taken_and_not_made_again(folders):
    (folders.zoo / "a.json").write_bytes(b"kept")
    assert trained_file("a.json", options(folders), lambda: pytest.fail("made again")).read_bytes() == b"kept"


@pytest.mark.parametrize("quick", [False, True])
def test_what_zoo_lacks_or_a_quick_run_wants_is_made_into_the_work_folder(folders, quick):
    if quick:
        (folders.zoo / "a.json").write_bytes(b"kept")
    found = trained_file("a.json", options(folders, quick=quick), lambda: b"made")
    assert (found, found.read_bytes()) == (folders.work / "a.json", b"made")


def test_a_trained_network_has_the_weights_that_zoo_will_have(folders):
    """Rounded to half precision, so that a run with zoo/ is the run that made it."""

    def network():
        return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))

    first = network()
    with_weights(first, "net", options(folders), lambda: first[0].weight.data.fill_(0.1))
    assert not first.training
    (folders.work / "tasks-net.safetensors").rename(folders.zoo / "tasks-net.safetensors")
    second = network()
    with_weights(second, "net", options(folders), lambda: pytest.fail("trained again"))
    assert torch.equal(first[0].weight, second[0].weight)
    assert float(first[0].weight[0, 0]) == float(torch.tensor(0.1).half())
