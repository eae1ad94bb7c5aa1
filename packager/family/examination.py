"""Joints between networks, where a stitch could lead, before anything is fitted, packaged or written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations
from typing import Any

from packager.family.members import FamilyModel, as_member
from packager.family.stitches import Joint, joints
from packager.joining.networks import CutNetwork
from packager.supernet.expansion import expand
from packager.tracing.traced_model import trace

_EXAMPLES = 4  # images of noise for tracing


@dataclass(frozen=True)
class ExaminedFamily:
    """The members with their numbers of cut points, and the joints between them, by name of both members."""

    members: tuple[FamilyModel, ...]
    cut_points: Mapping[str, int]
    joints: Mapping[tuple[str, str], tuple[Joint, ...]]

    def described(self) -> dict[str, Any]:
        """As JSON output has it."""
        return {
            "members": [
                {
                    "name": one.name,
                    "macs": one.macs,
                    "input_size": list(one.own_size),
                    "cut_points": self.cut_points[one.name],
                }
                for one in self.members
            ],
            "input_shape": list(self.members[0].model.input_shape),
            "joints": [
                {
                    "start": start,
                    "end": end,
                    "count": len(found),
                    "path_macs": [min(one.path_macs for one in found), max(one.path_macs for one in found)],
                }
                for (start, end), found in self.joints.items()
                if found
            ],
        }


def examine_family(models: Sequence[FamilyModel]) -> ExaminedFamily:
    """Cut every model and list the joints between them at the family's own input size.

    Raises:
        TraceError: a model cannot be cut. UsageError: members do not belong together.
    """
    largest = models[0].model
    noise = largest.noise(_EXAMPLES)
    networks = []
    for number, one in enumerate(models):
        module = (as_member(one.model, largest) if number else largest).module
        expansion = expand(trace(module, noise), max_span=1)
        networks.append(CutNetwork(expansion.originals, tuple(expansion.traced.cuts)))
    names = [one.name for one in models]
    found: dict[tuple[str, str], list[Joint]] = {pair: [] for pair in permutations(names, 2)}
    for joint in joints(networks):
        found[names[joint.start[0]], names[joint.end[0]]].append(joint)
    return ExaminedFamily(
        tuple(models),
        {name: len(network.cuts) for name, network in zip(names, networks, strict=True)},
        {pair: tuple(of_pair) for pair, of_pair in found.items()},
    )
