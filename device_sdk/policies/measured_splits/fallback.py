"""Fallbacks for a split whose server does not answer, and their memory on the device. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from device_sdk.supernet.cost import CostModel
from device_sdk.supernet.plan import UNREACHABLE_CONFIDENCE, ExitChoice, Fallback, Plan, Split
from device_sdk.supernet.supernet import Supernet


@dataclass(frozen=True)
class Fallbacks:
    """The fallback of ``plan`` at each place where it may be split.

    ``device``: its costs of exits; ``wanted``: ``exit`` becomes ``abstain`` where no exit that it knows lies before.
    """

    supernet: Supernet
    plan: Plan
    device: CostModel
    wanted: Fallback = "subnet"

    def exit_at(self, position: int) -> ExitChoice | None:
        """The exit that answers in place of the server behind cut point ``position``.

        The last one of the plan up to there; where it has none, the last that the subnet passes, which then answers
        nothing else.
        """
        if self.wanted != "exit":
            return None
        own = self._exits_up_to(position)
        if own:
            return own[-1]
        passed = [one for one in self.supernet.exits_along(self.plan.subnet) if one.position <= position]
        choices = [ExitChoice(one.id, UNREACHABLE_CONFIDENCE, one.renditions[0].name) for one in passed]
        known = [one for one in choices if (one.exit, one.rendition, ()) in self.device.exit_costs]
        return known[-1] if known else None

    def size_bytes(self, position: int) -> int:
        """Memory of the exit that answers in place of the server."""
        choice = self.exit_at(position)
        return 0 if choice is None else self.device.exit_bytes(choice)

    def applied(self, split: Split) -> Plan:
        """The plan with ``split``: without exits behind it, with the fallback there."""
        exits = self._exits_up_to(split.position)
        choice = self.exit_at(split.position)
        kind: Fallback = "abstain" if self.wanted == "exit" and choice is None else self.wanted
        if choice is not None and not exits:
            exits = (choice,)
        return msgspec.structs.replace(self.plan, exits=exits, split=msgspec.structs.replace(split, fallback=kind))

    def _exits_up_to(self, position: int) -> tuple[ExitChoice, ...]:
        before = (one for one in self.plan.exits if self.supernet.exit(one.exit).position <= position)
        return tuple(one.without_asking() for one in before)
