"""Trains the branch zoo in several processes, as torchrun does for ``pathweave package``."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Mapping
from dataclasses import replace

import torch

from benchmarks.runner.run import BenchOptions
from benchmarks.support.branch_zoo import ZooSetting, zoo_setting
from device_sdk.machine import usable_cores
from device_sdk.progress import SilentProgress
from packager.branch_zoo.cultivation import Cultivated
from packager.branch_zoo.rungs import ZooSettings
from packager.errors import TrainingError
from packager.training.process_group import joined


def process_count() -> int:
    """One process per core that this one may use."""
    return usable_cores()


def trained_in_processes(
    options: BenchOptions, setting: ZooSetting, name: str, settings: ZooSettings, *, images: int
) -> Cultivated:
    """Train all cut points in processes of one thread each, and take up here what they left in the work folder.

    ``name``: of the work folder; ``images``: as ``setting`` was made with.

    Raises:
        TrainingError: a process failed.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(process_count()), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    silent = replace(options, progress=SilentProgress())  # other processes are not sent this one's progress
    shared = (silent, setting.network, settings, len(setting.positions), images, name)
    workers = [
        context.Process(target=_train, args=(group | {"RANK": str(rank)}, *shared)) for rank in range(process_count())
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise TrainingError("a process that trained branches failed", hint="its error is printed above")
    return setting.cultivation(options, name, settings).run()


def _train(
    group: Mapping[str, str],
    options: BenchOptions,
    network: str,
    settings: ZooSettings,
    exits: int,
    images: int,
    folder: str,
) -> None:
    torch.set_num_threads(1)
    os.environ.update(group)  # torch's rendezvous reads them
    setting = zoo_setting(options, network, exits=exits, images=images)
    with joined(os.environ) as ranks:
        setting.cultivation(options, folder, settings, ranks=ranks).run()
        ranks.leave()
