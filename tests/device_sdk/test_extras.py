from __future__ import annotations

from pathlib import Path

import pytest

from device_sdk.errors import MissingExtraError
from device_sdk.extras import require


def test_an_installed_module_is_returned() -> None:
    import json.decoder

    assert require("json.decoder", extra="packager") is json.decoder


@pytest.mark.parametrize("module", ["surely_absent_library", "surely_absent_library.part"])
def test_an_absent_module_is_explained_with_the_pip_command(module: str) -> None:
    with pytest.raises(MissingExtraError, match=module) as caught:
        require(module, extra="vision")
    assert caught.value.hint == "pip install 'pathweave[vision]'"
    assert caught.value.extra == "vision"


def test_a_library_that_is_there_but_lacks_its_own_dependency_is_not_called_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "half_installed_library.py").write_text("import surely_absent_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="surely_absent_dependency"):
        require("half_installed_library", extra="packager")


def test_a_library_that_fails_at_import_keeps_its_own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_library.py").write_text("raise RuntimeError('operator does not exist')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(RuntimeError, match="operator"):
        require("failing_library", extra="vision")
