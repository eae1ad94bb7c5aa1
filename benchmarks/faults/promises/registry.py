"""The 18 promises, in order, with their shares of time: in all about seven minutes, and under two for ``--quick``."""

from __future__ import annotations

from benchmarks.faults.promise import Promise
from benchmarks.faults.promises.concurrency import endless_switching, many_threads
from benchmarks.faults.promises.interrupted_updates import full_disk, racing_installers, resumed_download
from benchmarks.faults.promises.isolation import two_devices
from benchmarks.faults.promises.killed_updates import active_bundle
from benchmarks.faults.promises.log_delivery import stored_once
from benchmarks.faults.promises.memory import pressure
from benchmarks.faults.promises.network import no_hang
from benchmarks.faults.promises.overload import batches, open_loop
from benchmarks.faults.promises.parsers import any_bytes
from benchmarks.faults.promises.refused_updates import bad_updates, no_way_back
from benchmarks.faults.promises.secrets import nothing_told
from benchmarks.faults.promises.verification import hostile_models, verified_bytes

PROMISES = (
    Promise(
        "R1",
        "After a kill at any point of an update or of packaging, the bundle there is exactly the old or the new one.",
        seconds=50,
        quick_seconds=6,
        check=active_bundle,
    ),
    Promise(
        "R2",
        "No byte is loaded that was not verified.",
        seconds=45,
        quick_seconds=4,
        check=verified_bytes,
    ),
    Promise(
        "R3",
        "An interrupted download goes on where it was: at most one chunk is fetched again, and nothing is left behind.",
        seconds=5,
        quick_seconds=5,
        check=resumed_download,
    ),
    Promise(
        "R4",
        "Of eight installers at once, with or without locks, each opens a whole bundle, and never goes back.",
        seconds=16,
        quick_seconds=4,
        check=racing_installers,
    ),
    Promise(
        "R5",
        "On a full disk the old bundle opens, or the new one if it fitted.",
        seconds=8,
        quick_seconds=5,
        check=full_disk,
    ),
    Promise(
        "R6",
        "No network makes an inference or the opening of a bundle take longer than its deadline.",
        seconds=30,
        quick_seconds=6,
        check=no_hang,
    ),
    Promise(
        "R7",
        "Without memory a call or a request is refused; nothing crashes, and what follows is answered as before.",
        seconds=15,
        quick_seconds=4,
        check=pressure,
    ),
    Promise(
        "R8",
        "A log line that a server has acknowledged is stored exactly once, until a retention that it reports.",
        seconds=12,
        quick_seconds=4,
        check=stored_once,
    ),
    Promise(
        "R9",
        "No older version, no other bytes under a version, no other product, key or signature is taken for an update.",
        seconds=8,
        quick_seconds=3,
        check=no_way_back,
    ),
    Promise(
        "R10",
        "A signed update that crashes, hangs, is slow or answers wrongly is undone by the device itself.",
        seconds=15,
        quick_seconds=10,
        check=bad_updates,
    ),
    Promise(
        "S1",
        "At three times its capacity a server answers what it accepts in time, stays as large as it is, and recovers.",
        seconds=30,
        quick_seconds=6,
        check=open_loop,
    ),
    Promise(
        "S2",
        "A request that is run together with others gets its own answers.",
        seconds=10,
        quick_seconds=2,
        check=batches,
    ),
    Promise(
        "S3",
        "Whatever bytes come, a parser returns or refuses them with an error of ours, at once.",
        seconds=64,
        quick_seconds=4,
        check=any_bytes,
    ),
    Promise(
        "S4",
        "A device can read, change and count nothing of another, on any route.",
        seconds=6,
        quick_seconds=2,
        check=two_devices,
    ),
    Promise(
        "S5",
        "A model that would read files, run other operators or take memory out of all proportion is refused at once.",
        seconds=3,
        quick_seconds=1,
        check=hostile_models,
    ),
    Promise(
        "S6",
        "No token, key, code, password or sample is in a log, an error, a reply or a file.",
        seconds=5,
        quick_seconds=5,
        check=nothing_told,
    ),
    Promise(
        "S7",
        "While a model adapts, switches, pages and closes, every call is answered as its plan answers, or says closed.",
        seconds=24,
        quick_seconds=4,
        check=many_threads,
    ),
    Promise(
        "S8",
        "However often plans are switched, memory, disk and handles stay as they are.",
        seconds=24,
        quick_seconds=4,
        check=endless_switching,
    ),
)
