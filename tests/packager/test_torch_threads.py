from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="needs the extra: pip install 'pathweave[packager]'")

CODE = """
import os, sys
if sys.argv[1] == "pinned":
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
import torch
from packager.data.image_set import worker_count
from packager.torch_device import use_threads
torch.set_num_threads(64)
use_threads(int(sys.argv[2]) or None)
print(torch.get_num_threads(), worker_count())
"""


def threads_and_workers(*arguments):
    command = [sys.executable, "-c", CODE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    return tuple(map(int, done.stdout.split()))


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system pins no processes")
def test_a_pinned_run_uses_one_thread_and_no_workers():
    assert threads_and_workers("pinned", "0") == (1, 0)


@pytest.mark.slow
def test_torch_gets_no_more_threads_than_usable_cores_unless_it_is_said():
    free, _ = threads_and_workers("free", "0")
    assert free <= (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())
    assert threads_and_workers("free", "3")[0] == 3
