from __future__ import annotations

import pytest
import torch

from packager.branch_zoo.plain import attach_exits
from packager.errors import WeightsError
from packager.expanding import load_branches, write_branches
from packager.inputs.weights import read_state_dict
from packager.supernet.expansion import expand


@pytest.fixture
def make_expansion(tiny_traced):
    def make(*, shift: float = 0.0, exits: int = 2):
        expansion = attach_exits(expand(tiny_traced, max_span=2), count=exits)
        with torch.no_grad():
            for part in (*expansion.added, *expansion.exits):
                for parameter in part.module.parameters():
                    parameter += shift
        return expansion

    return make


def tensors(expansion) -> list[torch.Tensor]:
    return [t for part in (*expansion.added, *expansion.exits) for t in part.module.state_dict().values()]


def test_written_weights_make_a_fresh_supernet_the_trained_one(make_expansion, tmp_path):
    trained, fresh = make_expansion(shift=0.5), make_expansion()
    write_branches(trained, tmp_path / "branches.safetensors")
    assert not all(map(torch.equal, tensors(fresh), tensors(trained)))
    fresh = load_branches(fresh, read_state_dict(tmp_path / "branches.safetensors"))
    assert all(map(torch.equal, tensors(fresh), tensors(trained)))


def test_blocks_that_were_left_out_of_the_training_are_left_out_again(make_expansion, tmp_path):
    trained = make_expansion(shift=0.5)
    trained = trained.without([trained.trained[0].id])
    write_branches(trained, tmp_path / "branches.safetensors")
    found = load_branches(make_expansion(), read_state_dict(tmp_path / "branches.safetensors"))
    assert [block.id for block in found.blocks] == [block.id for block in trained.blocks]
    assert all(map(torch.equal, tensors(found), tensors(trained)))


def test_originals_are_never_written(make_expansion, tmp_path):
    expansion = make_expansion()
    write_branches(expansion, tmp_path / "branches.safetensors")
    owners = {name.partition(".")[0] for name in read_state_dict(tmp_path / "branches.safetensors")}
    assert owners == {part.id for part in (*expansion.added, *expansion.exits)}


def test_weights_of_another_supernet_are_refused_and_change_nothing(make_expansion, tmp_path):
    write_branches(make_expansion(shift=0.5, exits=1), tmp_path / "branches.safetensors")
    expansion = make_expansion()
    before = [tensor.clone() for tensor in tensors(expansion)]
    with pytest.raises(WeightsError, match="another supernet: x"):
        load_branches(expansion, read_state_dict(tmp_path / "branches.safetensors"))
    assert all(map(torch.equal, tensors(expansion), before))


def test_a_missing_file_is_told(tmp_path):
    with pytest.raises(WeightsError, match="there is no weights file"):
        read_state_dict(tmp_path / "none.safetensors")
