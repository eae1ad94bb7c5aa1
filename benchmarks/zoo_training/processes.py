"""Trains the branch zoo in several processes, as torchrun does for ``pathweave package``."""

from __future__ import annotations

import multiprocessing
import os
import socket
from collections.abc import Mapping

import torch

from benchmarks.support.branch_zoo import zoo_setting
from packager.branch_zoo.settings import ZooSettings
from packager.errors import TrainingError
from packager.training.process_group import joined
from pathweave.bench import BenchOptions


def train_in_processes(
    options: BenchOptions, network: str, settings: ZooSettings, *, exits: int, images: int, count: int, folder: str
) -> None:
    """Train all cut points in ``count`` processes of one thread each.

    Rank 0 leaves what it gathered in the work folder ``folder``, where a cultivation finds it.

    Raises:
        TrainingError: a process failed.
    """
    context = multiprocessing.get_context("spawn")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    group = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    workers = [
        context.Process(
            target=_train,
            args=(group | {"RANK": str(rank)}, options, network, settings, exits, images, folder),
        )
        for rank in range(count)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    if any(worker.exitcode for worker in workers):
        raise TrainingError("a process that trained branches failed", hint="its error is printed above")


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
