"""Further parts of the demo: a split plan over a slow uplink, and a packaging job on the server."""

from __future__ import annotations

import json
import time
import uuid
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from device_sdk.data.datasets import load_dataset
from device_sdk.errors import TransferError
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.policies.measured_splits.decision import with_split
from device_sdk.progress import Progress
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.cost import Uplink
from device_sdk.supernet.goal import Goal
from device_sdk.supernet.plan import Plan
from device_sdk.transports import Deadlines, make_transport
from device_sdk.transports.port import Transport, read_all, require_success
from pathweave.demo.devices import HELD_BACK, Delivery
from pathweave.throttled_proxy import slow_uplink

UPLINK_MBPS = 3.0
SPLIT_SAMPLES = 60
JOB_NAME = "digits-uploaded"
JOB_LIMIT_S = 150.0
_POLL_S = 0.25
_DEADLINES = Deadlines(idle_s=10, total_s=30)
_MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class SplitResult:
    """The full model split at the best inner cut point, over ``UPLINK_MBPS``.

    Latencies are end to end, at batch 1; ``agreement``: share of samples with the same class as without a split.
    """

    position: int
    predicted_ms: float
    measured_ms: float
    on_device_ms: float
    bytes_sent: int
    agreement: float


@dataclass(frozen=True)
class JobResult:
    """A bundle that the server packaged from uploaded weights, opened by a device."""

    state: str
    version: int
    seconds: float
    accuracy: float


def split_once(delivery: Delivery, progress: Progress) -> SplitResult:
    """Run the full model split between device and server, and compare it with the unsplit model."""
    images = load_dataset(HELD_BACK).images[:SPLIT_SAMPLES]
    with delivery.open("split", progress) as model, slow_uplink(delivery.server, mbps=UPLINK_MBPS) as (address, _):
        whole = model(images).output.argmax(axis=1)
        remote = RemoteModel(server=address, model=f"{delivery.bundle}:tail", privacy="activations", timeout_s=5.0)
        model.remote.connect(remote)
        goal, uplink = Goal(optimise="latency_ms"), Uplink(UPLINK_MBPS)
        decision = model.adapt(None, goal, {"split"}, uplink=uplink, progress=progress).split
        assert decision is not None
        best = min([cost for cost in decision.costs[:-1] if cost.position], key=lambda cost: cost.latency_ms)
        model.use(with_split(model.bundle, Plan(decision.plan.subnet), best, decision.server))
        model(images[0])  # warm-up: opens the connection and loads the tail at the server
        answers = [model(image) for image in images]
    if any(answer.source != (SERVER,) for answer in answers):
        raise TransferError("the server did not run all tails")
    divided = np.concatenate([answer.output.argmax(axis=1) for answer in answers])
    return SplitResult(
        position=best.position,
        predicted_ms=best.latency_ms,
        measured_ms=float(np.median([answer.latency_ms for answer in answers])),
        on_device_ms=decision.on_device.latency_ms,
        bytes_sent=best.bytes_sent,
        agreement=float((divided == whole).mean()),
    )


def package_on_server(delivery: Delivery, weights: Path, progress: Progress) -> JobResult:
    """Upload ``weights`` as a packaging job to the server, and open the published bundle.

    Raises:
        TransferError: the job failed, or took too long.
    """
    started = time.monotonic()
    with closing(make_transport(delivery.server)) as transport, progress.task("packaging job", 1) as task:
        job = _post(transport, delivery.server, weights)
        while job["state"] in ("queued", "running"):
            if time.monotonic() - started > JOB_LIMIT_S:
                raise TransferError(f"the packaging job is still {job['state']} after {JOB_LIMIT_S:.0f} s")
            time.sleep(_POLL_S)
            job = _ask(transport, f"{delivery.server}/v1/jobs/{job['id']}")
        task.advance()
    if job["state"] != "done":
        raise TransferError(f"the packaging job {job['state']}: {job['error']}")
    with closing(make_transport(delivery.server)) as transport:
        job = _publish(transport, delivery.server, job["id"])
    seconds = time.monotonic() - started
    held_back = load_dataset(HELD_BACK)
    address = f"{delivery.server}/v1/bundles/{JOB_NAME}"
    state = delivery.state / "job"
    with AdaptiveModel.open(address, trust=delivery.public_key, state_folder=state, progress=progress) as model:
        right = model(held_back.images).output.argmax(axis=1) == held_back.labels
    return JobResult(job["state"], job["version"], seconds, float(right.mean()))


def _post(transport: Transport, server: str, weights: Path) -> dict[str, Any]:
    job = {
        "name": JOB_NAME,
        "model": "zoo:resnet_digits",
        "data": "digits#train",
        "validation": "digits#calibration",
        "recipe": {"steps": 20, "max_span": 2, "exit_positions": 0, "batch": 32, "flip": False},
    }
    boundary = uuid.uuid4().hex
    parts = [
        ('name="job"', "application/json", json.dumps(job).encode()),
        ('name="weights"; filename="weights.safetensors"', "application/octet-stream", weights.read_bytes()),
    ]
    body = b"".join(
        f"--{boundary}\r\nContent-Disposition: form-data; {name}\r\nContent-Type: {kind}\r\n\r\n".encode()
        + data
        + b"\r\n"
        for name, kind, data in parts
    )
    headers = {"Content-Type": f"multipart/form-data; boundary={boundary}"}
    body += f"--{boundary}--\r\n".encode()
    return _ask(transport, f"{server}/v1/jobs", method="POST", headers=headers, body=body)


def _publish(transport: Transport, server: str, job_id: str) -> dict[str, Any]:
    headers = {"Content-Type": "application/json"}
    return _ask(transport, f"{server}/v1/jobs/{job_id}/publish", method="POST", headers=headers, body=b"{}")


def _ask(transport: Transport, url: str, *, method: str = "GET", **request: Any) -> dict[str, Any]:
    with transport.send(method, url, deadlines=_DEADLINES, max_bytes=_MAX_BYTES, **request) as reply:
        require_success(reply, what="the packaging job")
        body = json.loads(read_all(reply))
    assert isinstance(body, dict)
    return body
