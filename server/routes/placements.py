"""``POST /v1/placements``: which exits a device keeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from flask import Blueprint, Response, jsonify, request

from device_sdk.errors import UsageError
from device_sdk.policies.placement import (
    UNIFORM,
    ExitCandidate,
    StopTimes,
    Strategy,
    candidates_by_macs,
    place,
    transferable_bytes,
)
from device_sdk.supernet.supernet import Supernet
from server.access.route import Route
from server.access.scopes import Scope
from server.errors import MalformedError, UnprocessableError
from server.http.request_body import read_json
from server.routes.sender import bundle_for_sender
from server.services import Services

_MAX_BYTES = 250_000
_Bytes = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
_Milliseconds = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_Mbps = Annotated[float, msgspec.Meta(gt=0, le=1e9)]
_MAX_SEARCH_MS = 200.0
_MAX_PIECES = 1000


class MeasuredExit(msgspec.Struct, frozen=True):
    """A device's measurement of an exit: latency up to its answer, and memory.

    ``branch_ms``: the part of the latency in its branch, which delays every later exit; 0 if unknown.
    """

    latency_ms: _Milliseconds
    memory_bytes: _Bytes
    branch_ms: _Milliseconds | None = None


class StopTimesPiece(msgspec.Struct, frozen=True):
    """Inference stops up to this share of the full model's time, from the piece before on, with this weight."""

    until: float
    weight: float


class Transfer(msgspec.Struct, frozen=True):
    """The branches have to arrive within ``latency_budget_ms`` of the request (MEEdge Eq. 1)."""

    latency_budget_ms: _Milliseconds
    uplink_mbps: _Mbps
    downlink_mbps: _Mbps


class PlacementRequest(msgspec.Struct, frozen=True):
    """A request. Without measured ``exits``, cost is in MACs; without ``memory_bytes``, memory is unlimited.

    ``stop_times``: distribution of interruptions, uniform by default. ``search_ms``: limit for the search.
    """

    bundle: str
    memory_bytes: _Bytes | None = None
    exits: dict[str, MeasuredExit] | None = None
    full_latency_ms: _Milliseconds | None = None
    strategy: Strategy = "exact"
    stop_times: Annotated[tuple[StopTimesPiece, ...], msgspec.Meta(max_length=_MAX_PIECES)] | None = None
    transfer: Transfer | None = None
    search_ms: Annotated[float, msgspec.Meta(ge=0, le=_MAX_SEARCH_MS)] = _MAX_SEARCH_MS


def routes(services: Services) -> Blueprint:
    """The route of placements."""
    blueprint = Blueprint("placements", __name__, url_prefix="/v1/placements")
    blueprint.add_url_rule(
        "", "decide", Route(_decide, services, scope=Scope.DEVICE, methods=("POST",), takes=PlacementRequest)
    )
    return blueprint


def _decide(services: Services) -> Response:
    asked = read_json(request, PlacementRequest, max_bytes=_MAX_BYTES, what="placement request")
    served = bundle_for_sender(services, asked.bundle)
    placement = decide(asked, served.bundle.supernet, version=served.version)
    return jsonify(placement | {"digest": served.bundle.digest})


def decide(
    request: PlacementRequest, supernet: Supernet, *, version: int, clock: Callable[[], float] = time.monotonic
) -> dict[str, Any]:
    """The reply to ``request``: the exits to keep, by position, with expected accuracy and latency.

    Raises:
        MalformedError: measured exits without the full model's latency, or the other way round; impossible stop times.
        UnprocessableError: an exit that the bundle does not have, or whose accuracy is unknown.
    """
    basis, candidates, full_time = _candidates(request, supernet)
    placement = place(
        candidates,
        full_time=full_time,
        memory_bytes=_limit_bytes(request),
        stop_times=_stop_times(request),
        strategy=request.strategy,
        time_limit_s=request.search_ms / 1000,
        clock=clock,
    )
    return {
        "bundle": request.bundle,
        "version": version,
        "basis": basis,
        "exits": list(placement.exits),
        "expectation": placement.expectation,
        "memory_bytes": placement.memory_bytes,
        "optimal": placement.optimal,
    }


def _candidates(request: PlacementRequest, supernet: Supernet) -> tuple[str, list[ExitCandidate], float]:
    """The basis of the times, the candidates, and the full model's time."""
    if (request.exits is None) != (request.full_latency_ms is None):
        raise MalformedError("exits and full_latency_ms go together", hint="measure both, or leave both out")
    if request.exits is None or request.full_latency_ms is None:
        return "macs", *candidates_by_macs(supernet)
    measured = [_candidate(exit_, found, supernet) for exit_, found in request.exits.items()]
    return "latency", measured, request.full_latency_ms


def _limit_bytes(request: PlacementRequest) -> int | None:
    """Bytes of exits that fit the memory and arrive in time; None for no limit."""
    if request.transfer is None:
        return request.memory_bytes
    arriving = transferable_bytes(search_ms=request.search_ms, **msgspec.structs.asdict(request.transfer))
    return arriving if request.memory_bytes is None else min(arriving, request.memory_bytes)


def _stop_times(request: PlacementRequest) -> StopTimes:
    if request.stop_times is None:
        return UNIFORM
    try:
        pieces = request.stop_times
        return StopTimes(tuple(piece.until for piece in pieces), tuple(piece.weight for piece in pieces))
    except UsageError as error:
        raise MalformedError(str(error), hint=error.hint) from error


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
