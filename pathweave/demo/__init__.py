"""``pathweave demo``: trains, packages and serves a small network, and adapts it on three simulated devices."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from device_sdk.data.datasets import load_dataset
from device_sdk.errors import UsageError
from device_sdk.files.atomic import storage_errors, write_atomically
from device_sdk.progress import Progress, SilentProgress
from device_sdk.supernet.supernet import Supernet
from pathweave.demo.devices import HELD_BACK, Delivery, DeviceResult, accuracy, simulate
from pathweave.demo.elastic import ElasticResult, answer_elastically
from pathweave.demo.extras import JobResult, SplitResult, package_on_server, split_once
from pathweave.demo.report import render_demo
from pathweave.server_process import log_lines_at, running_server

BUDGET_RATIOS = (1.0, 0.6, 0.35)  # of the full model's latency
CUT_DEVICE = 1  # its connection is dropped during the download
NAME = "digits"  # of the bundle
_DEVICE_FIELDS = (  # in the summary
    *("budget_ratio", "budget_ms", "subnet", "predicted_ms", "measured_ms", "full_ms"),
    *("predicted_ratio", "measured_ratio"),
    *("accuracy_local", "full_accuracy_local", "subnets_evaluated"),
    *("accuracy_with_server", "share_early", "share_asked", "exits", "resumed"),
)


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo.

    ``full_model_accuracy`` is on all held-back samples, not on one device's mix; ``log_lines_at_server``: number of
    events of all devices at the server; ``split`` and ``job``: a plan split between device and server, and a bundle
    that the server packaged; ``elastic``: answers by deadlines and in less memory.
    """

    devices: tuple[DeviceResult, ...]
    full_model_accuracy: float
    log_lines_at_server: int
    split: SplitResult
    job: JobResult
    elastic: ElasticResult
    report: Path
    seconds: float

    def summary(self) -> dict[str, Any]:
        """The JSON result."""
        return {
            "devices": [{field: getattr(device, field) for field in _DEVICE_FIELDS} for device in self.devices],
            "full_model_accuracy": self.full_model_accuracy,
            "log_lines_at_server": self.log_lines_at_server,
            "split": asdict(self.split),
            "job": asdict(self.job),
            "elastic": asdict(self.elastic),
            "report": self.report,
            "seconds": self.seconds,
        }


def run_demo(
    *, report_path: Path, work_folder: Path | None = None, seed: int = 0, progress: Progress | None = None
) -> DemoResult:
    """Train, package, serve, adapt on three simulated devices, and write the report to ``report_path``.

    Keys, bundle, the server's data and the devices' state remain in ``work_folder`` (default: a temporary folder,
    removed at the end). Results depend on ``seed`` and on latency noise only.

    Raises:
        UsageError: ``work_folder`` is not empty.
        StorageError: the work folder or the report cannot be written.
    """
    from pathweave.demo.training import make_keys, one_thread, package_and_sign, save_weights, train_full_model

    progress = progress or SilentProgress()
    started = time.monotonic()
    with storage_errors(report_path):
        report_path.parent.mkdir(parents=True, exist_ok=True)
    with _work_folder(work_folder) as work:
        private_key, public_key = make_keys(work)
        with one_thread():
            model = train_full_model(seed=seed, progress=progress)
            bundle = work / "bundles" / NAME
            package_and_sign(model, bundle, private_key=private_key, seed=seed, progress=progress)
            weights = save_weights(model, work / "digits.safetensors")
        signing = ("--threads", "1", "--key", str(private_key))
        with running_server(bundle.parent, data=work / "server", options=signing) as server:
            delivery = Delivery(server, NAME, public_key, work / "state")
            full_accuracy, supernet = _full_model(delivery, progress)
            devices = tuple(
                simulate(
                    ratio,
                    delivery=delivery,
                    cut=number == CUT_DEVICE,
                    seed=seed * len(BUDGET_RATIOS) + number,
                    progress=progress,
                )
                for number, ratio in enumerate(BUDGET_RATIOS)
            )
            log_lines = log_lines_at(server)
            split = split_once(delivery, progress)
            job = package_on_server(delivery, weights, progress)
            elastic = answer_elastically("full-model", delivery, progress)
    seconds = time.monotonic() - started
    page = render_demo(
        devices,
        supernet=supernet,
        full_model_accuracy=full_accuracy,
        split=split,
        job=job,
        elastic=elastic,
        seconds=seconds,
    )
    write_atomically(report_path, page.encode())
    return DemoResult(devices, full_accuracy, log_lines, split, job, elastic, report_path, seconds)


@contextmanager
def _work_folder(folder: Path | None) -> Iterator[Path]:
    if folder is None:
        with tempfile.TemporaryDirectory(prefix="pathweave-demo-") as temporary:
            yield Path(temporary)
        return
    with storage_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"the work folder {folder} is not empty", hint="name a new folder")
    yield folder


def _full_model(delivery: Delivery, progress: Progress) -> tuple[float, Supernet]:
    """The full model's accuracy on all held-back samples, and the bundle's graph."""
    with delivery.open("full-model", progress) as model:
        return accuracy(model, load_dataset(HELD_BACK)), model.bundle.supernet
