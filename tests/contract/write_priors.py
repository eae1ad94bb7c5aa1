"""Writes priors.json: priors over classes found from logits, logits under a prior, plans that have one (see README.md).

Logits come from seeds and are stored as numbers that float32 holds exactly.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import msgspec
import numpy as np
import numpy.typing as npt

from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.loaded_segments import corrected
from device_sdk.policies.gathering import find_prior, fit_temperature
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Abstain, ExitChoice, MaxConfidence, Plan, Prior, encode_plan

HERE = Path(__file__).parent
STEPS = 64  # logits are multiples of one over this
SHARPNESS = 8.0  # the largest noise in a logit

Json = dict[str, Any]
REFUSED = [
    {"log_ratios": []},
    {"log_ratios": [20.5, 0.0, 0.0]},
    {"log_ratios": [0.0, -21, 0.0]},
    {"log_ratios": [0.0, 0.0, 0.0], "temperature": 0},
    {"log_ratios": [0.0, 0.0, 0.0], "temperature": -1.5},
    {"log_ratios": [0.0, 0.0, 0.0], "shares": []},
    {"log_ratios": [0.0, 0.0, "0"]},
    {"temperature": 1.0},
]  # what is no prior


def main(target: Path) -> None:
    """One case a line."""
    found = {
        "found": [
            found_case(1, count=80, classes=4, mix=(8, 4, 1, 1), skill=5.0, labelled=False),
            found_case(2, count=80, classes=4, mix=(8, 4, 1, 1), skill=5.0, labelled=True),
            found_case(3, count=61, classes=5, mix=(0, 0, 1, 5, 0), skill=3.0, labelled=False),
            found_case(4, count=61, classes=5, mix=(0, 0, 1, 5, 0), skill=3.0, labelled=True),
            found_case(4, count=61, classes=5, mix=(0, 0, 1, 5, 0), skill=3.0, labelled=True, temperature=1.5),
            found_case(10, count=240, classes=4, mix=(4, 3, 2, 1), skill=2.0, labelled=False),
            found_case(10, count=240, classes=4, mix=(4, 3, 2, 1), skill=2.0, labelled=True),
            found_case(5, count=64, classes=4, mix=(1, 1, 1, 1), skill=5.0, labelled=False),
            found_case(6, count=64, classes=4, mix=(1, 1, 1, 1), skill=5.0, labelled=True),
            found_case(7, count=19, classes=3, mix=(1, 0, 0), skill=6.0, labelled=True),
            found_case(7, count=20, classes=3, mix=(1, 0, 0), skill=6.0, labelled=True),
        ],
        "corrected": [corrected_case(8, Prior((1.5, -0.25, -3.0))), corrected_case(9, Prior((0.1, 0.2, -0.7), 1.75))],
        "plans": plan_cases(),
        "refused": REFUSED,
    }
    lines = [f'"{key}": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]" for key, cases in found.items()]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def drawn(seed: int, count: int, mix: tuple[int, ...], skill: float) -> tuple[Array, npt.NDArray[np.int64]]:
    """Logits [count, classes] in which the label's stands out by ``skill``, and labels in these proportions."""
    random = SplitMix64(seed)
    each = [index for index, parts in enumerate(mix) for _ in range(parts)]
    labels = np.array([each[random.below(len(each))] for _ in range(count)])
    noise = np.array(uniform_floats(random.next(), count * len(mix)), np.float64).reshape(count, -1) * SHARPNESS
    noise[np.arange(count), labels] += skill
    return (np.floor(noise * STEPS) / STEPS).astype(np.float32), labels


def found_case(
    seed: int,
    *,
    count: int,
    classes: int,
    mix: tuple[int, ...],
    skill: float,
    labelled: bool,
    temperature: float | None = None,
) -> Json:
    assert len(mix) == classes
    logits, labels = drawn(seed, count, mix, skill)
    prior = find_prior(logits, labels if labelled else None, temperature=temperature)
    return {
        "logits": logits.tolist(),
        "labels": labels.tolist() if labelled else None,
        "temperature": temperature,
        "fitted": fit_temperature(logits, labels) if labelled else None,
        "prior": msgspec.to_builtins(prior),
    }


def corrected_case(seed: int, prior: Prior) -> Json:
    logits, _ = drawn(seed, 4, (1, 1, 1), 2.0)
    return {
        "logits": logits.tolist(),
        "prior": msgspec.to_builtins(prior),
        "corrected": corrected(logits, prior).astype(np.float64).tolist(),
    }


def plan_cases() -> list[str]:
    """Plans of ``bundle/`` as JSON."""
    supernet = Bundle.open(HERE / "bundle").supernet
    classes = supernet.cut_points[-1].tensors[-1].shape[-1]
    prior = Prior(tuple(-1.25 + 0.1 * number for number in range(classes)), 1.5)
    exit_ = supernet.exits_along(supernet.original)[0]
    plans = [
        Plan(supernet.original).with_prior(prior),
        Plan(
            supernet.original,
            (ExitChoice(exit_.id, 0.75, exit_.renditions[0].name),),
            hard=Abstain(MaxConfidence(0.5)),
            prior=Prior((0.0,) * classes),
        ),
    ]
    return [encode_plan(plan).decode() for plan in plans]


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "priors.json")
