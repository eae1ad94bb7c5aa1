"""A task of your own: an answer is right if the class is among its two most probable ones.

``python docs/extend/task.py BUNDLE`` scores a bundle's full model on drawn inputs, on the device and while learning.
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import torch

from device_sdk.bundles.bundle import Bundle
from device_sdk.bundles.runnable import golden_inputs
from device_sdk.execution.workspace import Workspace
from device_sdk.runtimes import make_runtime, runs_on
from device_sdk.runtimes.port import Array
from device_sdk.supernet.plan import Plan
from device_sdk.tasks import TASKS, answer_task, by_count
from device_sdk.tasks.classification import Accuracy
from device_sdk.tasks.port import Scores, Targets
from packager.tasks import Classification, mixed_loss

KIND = "top-two"
SAMPLES = 60


class TopTwoScore(Accuracy):
    """The share of samples whose class is among the two most probable ones."""

    name = "top-two accuracy"

    def scores(self, answers: Array, targets: Targets) -> Scores:
        """See the port."""
        likely = np.argsort(-answers, axis=1)[:, :2]
        return (likely == targets[:, None]).any(axis=1).astype(np.float32)

    def margins(self, answers: Array, targets: Targets) -> Scores:
        """See the port: the logit of the class minus the second largest of the others."""
        others = np.array(answers, dtype=np.float32)
        own = np.take_along_axis(others, targets[:, None], axis=1)[:, 0]
        np.put_along_axis(others, targets[:, None], -np.inf, axis=1)
        return own - np.sort(others, axis=1)[:, -2]


class TopTwoTask(Classification):
    """The same while the packager trains: it learns like a classifier, and is judged by the two best classes."""

    kind = KIND

    def score(self, answers: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """See the port."""
        return (answers.topk(2, dim=1).indices == targets[:, None]).any(1).float()


# In the product: a file in packager/tasks, another and a line in device_sdk/tasks, and, since readers must know what a
# model's output means, a name in ``TaskKind`` (device_sdk/bundles/manifest.py, docs/bundle_format.md).
TASKS[KIND] = by_count(TopTwoScore)


def main(folder: Path) -> None:
    """Score the full model's answers against labels that are its second choice in every other sample."""
    workspace = Workspace(Bundle.open(folder, accepts=runs_on()), make_runtime(threads=1))
    inputs = golden_inputs(workspace.supernet.cut_points[0], seed=1, batch=SAMPLES)[0]
    answers = workspace.load_plan(Plan(workspace.supernet.original), batch=SAMPLES).run(inputs).output
    choices = np.argsort(-answers, axis=1)
    labels = np.where(np.arange(SAMPLES) % 2, choices[:, 1], choices[:, 0])
    task = msgspec.structs.replace(workspace.bundle.manifest.task, kind=KIND)
    for judged in (workspace.bundle.manifest.task, task):
        score = answer_task(judged)
        print(f"{score.name}: {score.of(answers, score.checked(labels, SAMPLES)):.0%}")
    logits, targets = torch.from_numpy(answers), torch.from_numpy(labels)
    loss = mixed_loss(TopTwoTask(), logits, targets, logits, temperature=4.0, label_weight=0.5)
    print(f"while learning: {TopTwoTask().score(logits, targets).mean():.0%}, loss {loss:.2f}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
