from __future__ import annotations

from pathlib import Path

from server.settings import Settings, default_data_folder


def test_the_token_is_not_shown():
    assert "secret" not in repr(Settings(Path("x"), Path("y"), token="secret"))


def test_data_lies_hidden_in_the_folder_of_bundles(tmp_path):
    assert default_data_folder(tmp_path) == tmp_path / ".pathweave-server"


def test_data_lies_beside_a_bundle_that_may_be_replaced(tiny):
    assert default_data_folder(tiny.folder) == tiny.folder.parent / ".pathweave-server"
