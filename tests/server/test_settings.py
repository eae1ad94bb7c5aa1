from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from server.settings import Settings, default_data_folder

PINNED = """
import os
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
from pathlib import Path
from server.settings import Settings
print(Settings(Path("x"), Path("y")).inference_threads)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_a_pinned_server_uses_one_thread_per_core_of_its_own():
    done = subprocess.run([sys.executable, "-c", PINNED], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "1"


def test_the_token_is_not_shown():
    assert "secret" not in repr(Settings(Path("x"), Path("y"), token="secret"))


def test_data_lies_hidden_in_the_folder_of_bundles(tmp_path):
    assert default_data_folder(tmp_path) == tmp_path / ".pathweave-server"


def test_data_lies_beside_a_bundle_that_may_be_replaced(tiny):
    assert default_data_folder(tiny.folder) == tiny.folder.parent / ".pathweave-server"
