"""A runtime of your own: the onnx package's reference evaluator behind the runtime port.

``python docs/extend/runtime.py BUNDLE`` runs the self-test of a bundle on it, and its full model.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from onnx import ModelProto
from onnx.reference import ReferenceEvaluator

from device_sdk.bundles.bundle import Bundle
from device_sdk.errors import RuntimeFailedError
from device_sdk.execution.self_test import run_self_test
from device_sdk.execution.workspace import Workspace
from device_sdk.fragments.composition import COMPOSED, Stretch, compose
from device_sdk.runtimes import RUNTIMES, make_runtime, runs_on
from device_sdk.runtimes.port import Array, StopSignal
from device_sdk.supernet.plan import Plan

NAME = "reference"


class ReferenceRuntime:
    """Slow, and exact: every operator is a few lines of numpy. Takes the settings of the port and uses none."""

    reads: ClassVar[str] = COMPOSED  # ONNX fragments, which it composes
    providers: ClassVar[tuple[str, ...]] = ("numpy",)
    concurrency = 1  # numpy's threads are its own

    def __init__(self, *, threads: int = 1, provider: str = "numpy", **settings: Any) -> None:
        if provider not in self.providers:
            raise RuntimeFailedError(f"the reference evaluator has no {provider}", hint="it has numpy")
        self.identity = f"{NAME}-{provider}-{threads}t"

    def load(self, stretch: Stretch) -> ReferenceStretch:
        """See the port."""
        if stretch.runtime != self.reads:
            raise RuntimeFailedError(f"the reference evaluator cannot run blocks for {stretch.runtime}")
        try:
            return ReferenceStretch(ReferenceEvaluator(ModelProto.FromString(compose(stretch))))
        except (NotImplementedError, ValueError) as error:
            raise RuntimeFailedError(f"the reference evaluator refused the model: {error}") from error

    @property
    def waits_for_threads(self) -> bool:
        """See the port: everything runs in the calling thread."""
        return False

    def taking_turns(self) -> ReferenceRuntime:
        """See the port: there is no working memory to share."""
        return self


class ReferenceStretch:
    """A model that is ready to run."""

    def __init__(self, evaluator: ReferenceEvaluator) -> None:
        self._evaluator: ReferenceEvaluator | None = evaluator

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        if self._evaluator is None:
            raise RuntimeFailedError("the stretch was closed")
        try:
            return list(self._evaluator.run(None, dict(zip(self._evaluator.input_names, inputs, strict=True))))
        except (RuntimeError, ValueError) as error:
            raise RuntimeFailedError(f"the reference evaluator failed: {error}") from error

    def run_until(self, inputs: Sequence[Array], stop: StopSignal) -> list[Array] | None:
        """See the port: a run cannot be ended."""
        return None if stop.is_set else self.run(inputs)

    def close(self) -> None:
        """See the port."""
        self._evaluator = None


RUNTIMES[NAME] = ReferenceRuntime  # in the SDK: a line in device_sdk/runtimes/__init__.py


def main(folder: Path) -> None:
    """Open the renditions that the runtime reads, test them, and run the full model."""
    bundle = Bundle.open(folder, accepts=runs_on(NAME))
    workspace = Workspace(bundle, make_runtime(NAME, threads=1))
    run_self_test(workspace)
    image = np.zeros((1, *bundle.manifest.cut_points[0].tensors[0].shape), dtype=np.float32)
    answer = workspace.load_plan(Plan(workspace.supernet.original)).run(image).output
    named = bundle.manifest.task.class_names[answer.argmax()]
    print(f"{workspace.runtime.identity} passed the self-test and answers {named}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
