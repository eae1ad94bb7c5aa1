"""The 18 promises, in order."""

from __future__ import annotations

from benchmarks.faults.promise import Promise
from benchmarks.faults.promises import (
    interrupted_updates,
    killed_updates,
    log_delivery,
    memory,
    network,
    refused_updates,
    verification,
)

PROMISES = (
    Promise(
        "R1",
        "After a kill at any point of an update or of packaging, the bundle there is exactly the old or the new one.",
        seconds=75,
        quick_seconds=12,
        check=killed_updates.active_bundle,
    ),
    Promise(
        "R3",
        "An interrupted download goes on where it was: at most one chunk is fetched again, and nothing is left behind.",
        seconds=5,
        quick_seconds=5,
        check=interrupted_updates.resumed_download,
    ),
    Promise(
        "R4",
        "Of eight installers at once, with or without locks, each opens a whole bundle, and never goes back.",
        seconds=20,
        quick_seconds=5,
        check=interrupted_updates.racing_installers,
    ),
    Promise(
        "R5",
        "On a full disk the old bundle opens, or the new one if it fitted.",
        seconds=20,
        quick_seconds=5,
        check=interrupted_updates.full_disk,
    ),
    Promise(
        "R2",
        "No byte is loaded that was not verified.",
        seconds=60,
        quick_seconds=5,
        check=verification.verified_bytes,
    ),
    Promise(
        "S5",
        "A model that would read files, run other operators or take memory out of all proportion is refused at once.",
        seconds=3,
        quick_seconds=1,
        check=verification.hostile_models,
    ),
    Promise(
        "R9",
        "No older version, no other bytes under a version, no other product, key or signature is taken for an update.",
        seconds=15,
        quick_seconds=3,
        check=refused_updates.no_way_back,
    ),
    Promise(
        "R10",
        "A signed update that crashes, hangs, is slow or answers wrongly is undone by the device itself.",
        seconds=30,
        quick_seconds=12,
        check=refused_updates.bad_updates,
    ),
    Promise(
        "R6",
        "No network makes an inference or the opening of a bundle take longer than its deadline.",
        seconds=40,
        quick_seconds=10,
        check=network.no_hang,
    ),
    Promise(
        "R7",
        "Without memory a call or a request is refused; nothing crashes, and what follows is answered as before.",
        seconds=20,
        quick_seconds=5,
        check=memory.pressure,
    ),
    Promise(
        "R8",
        "A log line that a server has acknowledged is stored exactly once, until a retention that it reports.",
        seconds=20,
        quick_seconds=4,
        check=log_delivery.stored_once,
    ),
)
