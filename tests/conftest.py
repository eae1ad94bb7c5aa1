"""Fixtures that every test folder may use."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real data and pretrained weights that lies beside the repository.

    The environment variable PATHWEAVE_SHARED_DATA names another place.
    """
    default = Path(__file__).resolve().parents[2] / "shared" / "data"
    folder = Path(os.environ.get("PATHWEAVE_SHARED_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"needs the shared data folder, which is not at {folder}; set PATHWEAVE_SHARED_DATA")
    return folder
