from __future__ import annotations

import os

from benchmarks.support.burner import every_core_burning, one_core_burning


def test_every_core_has_a_process_that_ends_with_the_context() -> None:
    with every_core_burning() as processes:
        assert len(processes) == len(os.sched_getaffinity(0))
        assert all(process.poll() is None for process in processes)
    assert all(process.poll() is not None for process in processes)


def test_one_core_has_a_process_that_ends_with_the_context() -> None:
    with one_core_burning() as process:
        assert process.poll() is None
    assert process.poll() is not None
