"""Exit placement for a device: which exits it should keep. Pure."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from device_sdk.errors import UsageError
from device_sdk.policies.placement import ExitCandidate, candidates_by_macs, place
from device_sdk.supernet.supernet import Supernet
from server.errors import MalformedError, UnprocessableError

_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Milliseconds = Annotated[float, msgspec.Meta(gt=0)]


class MeasuredExit(msgspec.Struct, frozen=True):
    """A device's measurement of an exit: latency up to its answer, and memory.

    ``branch_ms``: the part of the latency in its branch, which delays every later exit; 0 if unknown.
    """

    latency_ms: _Milliseconds
    memory_bytes: _Bytes
    branch_ms: _Milliseconds | None = None


class PlacementRequest(msgspec.Struct, frozen=True):
    """A request. Without measured ``exits``, cost is in MACs; without ``memory_bytes``, memory is unlimited."""

    bundle: str
    memory_bytes: _Bytes | None = None
    exits: dict[str, MeasuredExit] | None = None
    full_latency_ms: _Milliseconds | None = None


def decide(request: PlacementRequest, supernet: Supernet, *, version: int) -> dict[str, Any]:
    """The reply to ``request``: the exits to keep, by position, with expected accuracy and latency.

    Raises:
        MalformedError: measured exits without the full model's latency, or the other way round.
        UnprocessableError: an exit that the bundle does not have, or whose accuracy is unknown.
    """
    if (request.exits is None) != (request.full_latency_ms is None):
        raise MalformedError("exits and full_latency_ms go together", hint="measure both, or leave both out")
    if request.exits is None or request.full_latency_ms is None:
        basis = "macs"
        candidates, full_time = candidates_by_macs(supernet)
    else:
        basis = "latency"
        candidates = [_candidate(exit_, measured, supernet) for exit_, measured in request.exits.items()]
        full_time = request.full_latency_ms
    placement = place(candidates, full_time=full_time, memory_bytes=request.memory_bytes)
    return {
        "bundle": request.bundle,
        "version": version,
        "basis": basis,
        "exits": list(placement.exits),
        "expectation": placement.expectation,
        "memory_bytes": placement.memory_bytes,
    }


def _candidate(exit_id: str, measured: MeasuredExit, supernet: Supernet) -> ExitCandidate:
    try:
        exit_ = supernet.exit(exit_id)
    except UsageError as error:
        raise UnprocessableError(
            f"the bundle has no exit {exit_id[:80]!r}",
            hint="its exits: " + (", ".join(exit_.id for exit_ in supernet.exits) or "none"),
        ) from error
    if exit_.accuracy is None:
        raise UnprocessableError(f"the accuracy of exit {exit_id} is unknown", hint="leave it out")
    branch_ms = min(measured.branch_ms or 0.0, measured.latency_ms)
    reach_ms = measured.latency_ms - branch_ms
    return ExitCandidate(exit_.id, exit_.position, exit_.accuracy, reach_ms, branch_ms, measured.memory_bytes)
