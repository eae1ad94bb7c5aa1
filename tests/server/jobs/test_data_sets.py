from __future__ import annotations

import pytest

from server.errors import ConfigurationError
from server.jobs.data_sets import BUILT_IN, data_references, locations


@pytest.fixture
def file(tmp_path):
    return tmp_path / "data.toml"


def test_without_a_file_there_are_the_digits(file):
    assert data_references(file) == {name: name for name in BUILT_IN}


def test_names_stand_for_references_of_any_kind(file, tmp_path):
    file.write_text('cifar-train = "/srv/cifar.zip#search"\nd = "digits#train"\nhere = "images"\n')
    known = data_references(file)
    assert known["cifar-train"] == "/srv/cifar.zip#search"
    assert known["d"] == "digits#train"
    assert known["here"] == str(tmp_path / "images")
    assert set(BUILT_IN) < set(known)


def test_the_file_is_read_as_it_is_now(file):
    data_references(file)
    file.write_text('new = "/srv/new"')
    assert "new" in data_references(file)


@pytest.mark.parametrize(
    "text", ["a =", "a = 1", 'a = ""', 'a = "#train"', '[a]\nb = "/srv"', '"a b" = "/srv"', '"digits#train" = "/srv"']
)
def test_a_wrong_file_is_the_operators_fault_and_named(file, text):
    file.write_text(text)
    with pytest.raises(ConfigurationError, match=r"data\.toml") as caught:
        data_references(file)
    assert caught.value.status == 500


def test_what_is_no_text_is_told(file):
    file.write_bytes(b"\xff")
    with pytest.raises(ConfigurationError):
        data_references(file)


def test_locations_are_called_by_their_names(file):
    file.write_text('cifar = "/srv/cifar.zip#search"\n')
    assert locations(data_references(file)) == {"/srv/cifar.zip": "cifar"}
