"""The plan of a rollout: stages, limits of the devices' signals, and what a halt does. Pure."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from device_sdk.delivery.assignment import encode_tags
from device_sdk.errors import UsageError
from server.errors import UnprocessableError

STAGES_MAX, DEVICES_MAX = 20, 10_000

_Share = Annotated[float, msgspec.Meta(ge=0, le=1)]
_Minutes = Annotated[float, msgspec.Meta(ge=0, le=525_600)]
_Name = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9_.-]{1,128}\Z")]


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Devices that a stage adds: ``devices`` by name, and ``percent`` of those with all ``tags``, by a stable hash.

    ``hold_minutes``: the least time before the next stage; ``min_devices``: that have to report by then, of all stages
    so far. ``approval``: ``operator`` if the stage is not entered by itself.
    """

    percent: Annotated[float, msgspec.Meta(ge=0, le=100)] = 0.0
    tags: dict[str, str] = {}
    devices: Annotated[tuple[_Name, ...], msgspec.Meta(max_length=DEVICES_MAX)] = ()
    hold_minutes: _Minutes = 60.0
    min_devices: Annotated[int, msgspec.Meta(ge=0, le=10**9)] = 1
    approval: Literal["auto", "operator"] = "auto"

    @property
    def is_for_all(self) -> bool:
        """True if it adds every device."""
        return self.percent == 100 and not self.tags


class Limits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of what is accepted of a version; None: not looked at. Shares are of the devices that tried it.

    ``self_test``: failed it; ``refused``: refused it otherwise; ``fallback``: a plan could not be loaded or a server
    stopped answering; ``out_of_reach``: no plan meets the latency budget (the last two: or as many as on the old
    version). ``latency_rise``: of the mean latency, 0.1 for 10 % longer; ``accuracy_drop``: of the mean accuracy.
    """

    self_test: _Share | None = 0.0005
    refused: _Share | None = 0.02
    fallback: _Share | None = 0.05
    out_of_reach: _Share | None = 0.05
    latency_rise: Annotated[float, msgspec.Meta(ge=0, le=100)] | None = 0.1
    accuracy_drop: _Share | None = 0.02


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The way in which a version is rolled out.

    ``on_halt``: ``reverse``: devices go back; ``pause``: no further device gets it. ``no_rollback``: none is signed, so
    reversing only stops further devices. ``against``: A/B: half of each stage gets this version instead.
    ``false_alarm``: the most likely share of good versions that are halted.
    """

    stages: Annotated[tuple[Stage, ...], msgspec.Meta(min_length=1, max_length=STAGES_MAX)]
    limits: Limits = Limits()
    on_halt: Literal["reverse", "pause"] = "reverse"
    no_rollback: bool = False
    against: Annotated[int, msgspec.Meta(ge=1, le=2**53 - 1)] | None = None
    false_alarm: Annotated[float, msgspec.Meta(gt=0, le=0.5)] = 0.05

    @property
    def ends(self) -> bool:
        """True if all devices have the version in the end, so that nothing is left to decide."""
        return self.stages[-1].is_for_all and self.against is None


def check_plan(plan: Plan) -> None:
    """Raise UnprocessableError unless every stage can add devices."""
    for number, stage in enumerate(plan.stages):
        if not stage.percent and not stage.devices:
            raise UnprocessableError(f"stage {number} adds no devices", hint="give it a percentage or devices")
        try:
            encode_tags(stage.tags)
        except UsageError as error:
            raise UnprocessableError(f"stage {number}: {error}", hint=error.hint) from error
