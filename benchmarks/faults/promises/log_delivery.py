"""R8: log lines, while the server is killed."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import threading
import time
from pathlib import Path

from benchmarks.faults.promise import Findings, Trial
from benchmarks.faults.serving import forked_server
from device_sdk.delivery.log_upload import upload_log
from device_sdk.errors import TransferError
from device_sdk.logs.adaptation_log import AdaptationLog, Opened
from device_sdk.transports import make_transport
from device_sdk.transports.port import Deadlines
from server.settings import database_path

DEVICE = "device-1"
LINES, KEPT = 40, 100  # per round; in the part on retention
QUICK = Deadlines(idle_s=1.0, total_s=3.0)


def stored_once(trial: Trial, findings: Findings) -> None:
    """R8: a device sends its log again and again; the server is killed at random times, and at once after its reply."""
    bundles, data = trial.new_folder("bundles"), trial.folder / "server"
    path = trial.folder / "log.jsonl"
    log = AdaptationLog(path, bundle="0" * 64, runtime="none")
    random, ends_s, rounds, port = trial.random, trial.ends_s(0.7), 0, 0
    while rounds < 3 or trial.clock() < ends_s:
        rounds += 1
        for number in range(LINES):
            log.write(Opened(subnet=f"{rounds} {number}", restored=False))
        acknowledged = False
        for attempt in range(20):
            with forked_server(bundles, data, port=port) as server:
                port = server.address[1]
                after_s = random.uniform(0.0, 0.25) if attempt < 4 else 30.0
                killer = threading.Timer(after_s, server.child.kill)
                killer.start()
                acknowledged = _sent(path, server.url)
                killer.cancel()
                killer.join()
                server.child.kill()  # at once after the reply, too
                findings.kills += 1
            if acknowledged:
                break
        findings.case(acknowledged, "the log was not acknowledged in 20 attempts", "hung")
        _compare(path, data, findings)
    findings.note(f"{rounds} rounds of {LINES} lines")
    _retention(trial, findings)


def _sent(path: Path, url: str) -> bool:
    with contextlib.closing(make_transport(url)) as transport:
        try:
            upload_log(path, url, transport, device=DEVICE, deadlines=QUICK)
        except TransferError:
            return False
    return True


def _compare(path: Path, data: Path, findings: Findings) -> None:
    """All lines of the log are there, each once, and nothing else."""
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    stored = _stored(data)
    wanted = sorted(json.dumps(line, sort_keys=True) for line in lines)
    found = sorted(json.dumps(line, sort_keys=True) for line in stored)
    findings.case(
        found == wanted, f"{len(found)} lines are stored, {len(set(found))} different, of {len(wanted)}", "torn"
    )


def _stored(data: Path) -> list[dict[str, object]]:
    with contextlib.closing(sqlite3.connect(database_path(data))) as connection:
        rows = connection.execute("SELECT line FROM log_lines WHERE device = ?", (DEVICE,)).fetchall()
    return [json.loads(row[0]) for row in rows]


def _retention(trial: Trial, findings: Findings) -> None:
    """Lines that retention drops are counted, and do not come back when the device sends its log again."""
    bundles, data = trial.folder / "bundles", trial.folder / "retention"
    path = trial.folder / "long.jsonl"
    log = AdaptationLog(path, bundle="0" * 64, runtime="none")
    for number in range(3 * KEPT):
        log.write(Opened(subnet=str(number), restored=False))
    sent = 0
    with forked_server(bundles, data, keep_log_lines=KEPT) as server:
        for _ in range(3):
            sent += _sent(path, server.url)
            time.sleep(0.01)
            devices = server.ask("/v1/devices").json()["devices"]
            counts = [(one["lines"], one["dropped"]) for one in devices]
            findings.case(counts == [(KEPT, 2 * KEPT)], f"retention of {KEPT} lines reports {counts}")
    findings.case(sent == 3, f"{sent} of 3 uploads were acknowledged")
