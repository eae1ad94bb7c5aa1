"""Writes tasks.json: answers and targets of every task, and what they count, and maps/, a segmenter (see README.md).

Answers come from seeds and are multiples of 1/64; no box is nearly half over another.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

import numpy as np
from reference_bundle import ReferenceBundle

from device_sdk.data.unlabelled import IGNORED
from device_sdk.random_source import SplitMix64, uniform_floats
from device_sdk.runtimes.port import Array
from device_sdk.tasks import TASKS
from device_sdk.tasks.detection import boxes_of
from device_sdk.tasks.port import Targets

HERE = Path(__file__).parent
Json = dict[str, Any]
TAGS = ("I-a", "O", "B-a", "S-b", "E-b")


def main(target: Path) -> None:
    """One case a line, and the bundle beside it."""
    ReferenceBundle(maps=True).write(target.with_name("maps"))
    cases = [
        case("classification", 4, drawn(1, (12, 4)), integers(2, (12,), 4)),
        case("multilabel", 5, drawn(3, (12, 5)), integers(4, (12, 5), 2)),
        case("regression", 3, drawn(5, (9, 3)), drawn(6, (9, 3))),
        case("embedding", (), drawn(7, (9, 6)), drawn(8, (9, 6))),
        case("segmentation", 3, drawn(9, (4, 3, 5, 7)), maps(10, (4, 5, 7), 3)),
        case("segmentation", 3, drawn(11, (3, 3, 4, 6)), maps(12, (3, 11, 9), 3)),
        case("segmentation", 2, drawn(13, (2, 2, 9, 8)), maps(14, (2, 70, 80), 2)),
        case("token_classification", 3, texts(17, (5, 3, 12), (12, 9, 3, 12, 1)), tokens(18, (5, 12), 3)),
        case("token_classification", 4, texts(19, (3, 4, 40), (40, 33, 2)), tokens(20, (3, 48), 4)),
        case("token_classification", TAGS, texts(21, (6, 5, 24), (24, 20, 7, 2, 15, 24)), spans(22, (6, 24))),
        case("detection", 2, cells(15, (4, 6, 5, 6)), boxes(16)),
    ]
    target.write_text('{"cases": [\n' + ",\n".join(map(json.dumps, cases)) + "\n]}\n")


def drawn(seed: int, shape: tuple[int, ...]) -> Array:
    """Values of −2 to 2 in steps of 1/64."""
    values = np.array(uniform_floats(seed, int(np.prod(shape))), np.float64).reshape(shape)
    return (np.floor((values - 0.5) * 256) / 64).astype(np.float32)


def integers(seed: int, shape: tuple[int, ...], below: int) -> Targets:
    """Whole numbers from 0."""
    random = SplitMix64(seed)
    return np.array([random.below(below) for _ in range(int(np.prod(shape)))]).reshape(shape)


def maps(seed: int, shape: tuple[int, ...], classes: int) -> Targets:
    """Classes of pixels, of which some have none."""
    found = integers(seed, shape, classes + 1)
    return np.where(found == classes, IGNORED, found)


def texts(seed: int, shape: tuple[int, ...], lengths: tuple[int, ...]) -> Array:
    """Logits of tokens, 0 beyond the length of each text."""
    return drawn(seed, shape) * (np.arange(shape[-1]) < np.array(lengths)[:, None])[:, None].astype(np.float32)


def tokens(seed: int, shape: tuple[int, ...], classes: int) -> Targets:
    """Classes of tokens, of which some do not count."""
    found = integers(seed, shape, classes + 1)
    return np.where(found == classes, -1, found)


def spans(seed: int, shape: tuple[int, ...]) -> Targets:
    """Classes of tokens of which many are those that are found, so that some spans are."""
    found = texts(21, (6, 5, 24), (24, 20, 7, 2, 15, 24)).argmax(axis=1)
    return np.where(integers(seed, shape, 6) > 0, found, tokens(seed + 1, shape, 5))


def cells(seed: int, shape: tuple[int, ...]) -> Array:
    """Answers of a detector, most of whose cells find nothing."""
    found = drawn(seed, shape)
    found[:, :-4] -= 1
    found[:, -4:] -= 1
    return found


def boxes(seed: int) -> Targets:
    """Some of the boxes that ``cells`` find, some moved, and others."""
    answers = cells(15, (4, 6, 5, 6))
    found = TASKS["detection"](("a", "b")).stand_in(answers)[:, :5].copy()
    moved = drawn(seed, found.shape)
    found[:, 1::2, 1:] += 0.05 * moved[:, 1::2, 1:]
    found[:, 3, 0] = np.where(found[:, 3, 0] == 0, 1, found[:, 3, 0])
    found[3, :, 0] = -1  # nothing is there
    assert boxes_of(answers).shape == (4, 4, 5, 6)
    return found


def case(kind: str, classes: int | Sequence[str], answers: Array, targets: Targets) -> Json:
    """What a task makes of them; ``classes``: their number where their names say nothing."""
    names = [str(at) for at in range(classes)] if isinstance(classes, int) else list(classes)
    task = TASKS[kind](names)
    checked = task.checked(targets, len(answers))
    margins = task.margins(answers, checked)
    return {
        "kind": kind,
        "classes": names,
        "shape": list(answers.shape),
        "answers": answers.ravel().tolist(),
        "targets": described(kind, checked),
        "scores": task.scores(answers, checked).tolist(),
        "margins": margins.tolist(),
        "scale": task.margin_scale(margins.astype(np.float64), len(answers)),
        "compared": [np.asarray(one).ravel().tolist() for one in task.compared(answers)],
        "predictions": [[asdict(one) for one in found] for found in task.predictions(answers, names)],
        "stand_in": described(kind, task.stand_in(answers)),
    }


def described(kind: str, targets: Targets) -> Any:
    """Targets as JSON: of boxes without padding."""
    if kind == "segmentation":
        maps = [one.ravel().tolist() for one in targets]
        return {"height": targets.shape[1], "width": targets.shape[2], "maps": maps}
    if kind == "detection":
        return [[box.tolist() for box in one if box[0] >= 0] for one in targets]
    return targets.tolist()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "tasks.json")
