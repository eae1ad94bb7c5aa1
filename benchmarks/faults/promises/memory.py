"""R7: a device and a server that get no more memory."""

from __future__ import annotations

import gzip
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.serving import ForkedServer, forked_server
from benchmarks.faults.small_bundle import NAME
from benchmarks.faults.tools.forked import Forked
from benchmarks.faults.tools.memory_limit import limit_memory
from device_sdk.errors import PathweaveError
from device_sdk.offload.open_inference import InferRequest, NamedTensor, encode_request
from device_sdk.session.adaptive_model import AdaptiveModel

INFER = f"/v2/models/{NAME}:images/infer"
DEVICE_BYTES, SERVER_BYTES = 300_000_000, 500_000_000
MIB = 2**20
CLIENTS = 12
SHED = {413, 429, 503}


def pressure(trial: Trial, findings: Findings) -> None:
    """R7: ever larger batches on a device, and many large bodies at once at a server, each with a memory limit."""
    _device(trial, findings)
    _server(trial, findings)


def _device(trial: Trial, findings: Findings) -> None:
    state, report = trial.folder / "state", trial.folder / "report.json"
    AdaptiveModel.open(trial.bundle.folder, state_folder=state).close()  # tested now, not under the limit
    child = Forked(lambda: _infer_ever_more(trial.bundle.folder, state, report))
    status = child.join(60.0)
    if not findings.case(status is not None, "a device under memory pressure hangs", "hung"):
        return
    if not findings.case(status == 0, f"a device under memory pressure ended with {status}", "crashed"):
        return
    found = json.loads(report.read_text())
    findings.case(found["shed"] > 0, "no batch was too large")
    for what in found["broken"]:
        findings.case(False, f"a device under memory pressure: {what}", "crashed")
    findings.cases += found["batches"]
    findings.note(f"device: {found['by']}, {DEVICE_BYTES // MIB} MiB: {found['batches']} batches, {found['shed']} shed")


def _infer_ever_more(bundle: Path, state: Path, report: Path) -> None:
    broken, shed, batches = [], 0, 0
    with AdaptiveModel.open(bundle, state_folder=state) as model:
        large = np.zeros((4_000_000, 3, 2, 2), np.float32)
        small = np.ones((2, 3, 2, 2), np.float32)
        right = model.infer(small).output
        by = limit_memory(DEVICE_BYTES)
        for rows in [2**n for n in range(10, 22)] * 3 + [len(large)]:
            batches += 1
            try:
                model.infer(large[:rows])
            except (PathweaveError, MemoryError):
                shed += 1
            except Exception as error:
                broken.append(f"{rows} rows: {type(error).__name__}: {error}")
            if not np.array_equal(model.infer(small).output, right):
                broken.append(f"another answer after {rows} rows")
    report.write_text(json.dumps({"broken": broken, "shed": shed, "batches": batches, "by": by}))


def _server(trial: Trial, findings: Findings) -> None:
    bundles, said = trial.new_folder("bundles"), trial.folder / "limited"
    trial.bundle.copy(bundles / NAME)
    with forked_server(
        bundles,
        trial.folder / "server",
        prepare=lambda: said.write_text(limit_memory(SERVER_BYTES)),
        max_body_bytes=16 * MIB,
        max_json_bytes=16 * MIB,
        max_rows=2**20,
    ) as server:
        small, bodies = _images(2), _bodies()
        right = server.ask(INFER, method="POST", body=small[0], headers=small[1]).body
        ends_s, turns, statuses = trial.ends_s(0.8), 0, []
        with ThreadPoolExecutor(CLIENTS) as pool:
            while turns == 0 or trial.clock() < ends_s:
                turns += 1
                sent = [pool.submit(_status, server, n, *bodies[n % len(bodies)]) for n in range(CLIENTS)]
                statuses += [one.result() for one in sent]
        for status in statuses:
            findings.case(status in SHED | {200, 400}, f"a server under memory pressure answers {status}", "crashed")
        alive = server.child.join(0.05) if not _health(server) else "alive"
        findings.case(alive == "alive", f"a server under memory pressure ended with {alive}", "crashed")
        if alive == "alive":
            time.sleep(0.5)
            after = server.ask(INFER, method="POST", body=small[0], headers=small[1])
            findings.case((after.status, after.body) == (200, right), f"afterwards it answers {after.status}")
    counts = {status: statuses.count(status) for status in sorted(set(statuses))}
    findings.case(bool(SHED & set(statuses)), "nothing was shed: the pressure was too low")
    findings.note(f"server: {said.read_text()}, {SERVER_BYTES // MIB} MiB: replies {counts}")


def _bodies() -> list[tuple[bytes, dict[str, str]]]:
    """Large images, the same compressed to a thousandth, and JSON that is much larger as objects."""
    body, headers = _images(1_300_000)  # 15.6 MB
    numbers = {"inputs": [{"name": "image", "datatype": "UINT8", "shape": [200_000, 2, 2, 3], "data": [1] * 2_400_000}]}
    return [
        (body, headers),
        (gzip.compress(body), headers | {"Content-Encoding": "gzip"}),
        (json.dumps(numbers).replace(" ", "").encode(), {"Content-Type": "application/json"}),
    ]


def _images(rows: int) -> tuple[bytes, dict[str, str]]:
    images = np.zeros((rows, 2, 2, 3), np.uint8)
    return encode_request(InferRequest((NamedTensor("image", images),), binary_output=True))


def _status(server: ForkedServer, client: int, body: bytes, headers: dict[str, str]) -> int:
    """0 without a reply."""
    try:
        return server.ask(INFER, method="POST", body=body, headers=headers, source=f"127.0.1.{client + 1}").status
    except Exception:
        return 0


def _health(server: ForkedServer) -> bool:
    try:
        return server.ask("/health").status == 200
    except Exception:
        return False
