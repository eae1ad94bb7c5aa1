"""Memory-elastic inference: a limit that changes seven times under running requests, measured (MEEdge Fig. 9b).

AlexNet with exits, its weights random, answers requests from two threads while the limit changes, above and below
what the single model needs. Where a control group of version 2 that counts memory can be made, the limit is that of the
group and the model follows it; otherwise, as the table says, the limit is the model's cap, set at run time, and the
memory is the growth of the process beyond the bare runtime. ``over_budget``: readings above
the limit once the model had adapted to it (a second after the change), of ``readings``; ``adapt_p95_s``: from a change
until no later reading is above the limit; ``failed``: requests without an answer. The single model, without exits and
pages, is loaded and run under each limit in a process of its own (``single``): ``single_exit_failures`` counts those
under which it was ended or refused memory, ``single_exit_unexpected`` those where its measured peak says otherwise.
"""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np

from benchmarks.elastic.network import make_bundle
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import CHECKOUT
from benchmarks.support.reference_bundles import load_part
from device_sdk.session.adaptive_model import AdaptiveModel

TARGETS = {
    "over_budget": Target(maximum=0),
    "failed": Target(maximum=0),
    "adapt_p95_s": Target(maximum=1.0),
    "single_exit_failures": Target(minimum=4),
    "single_exit_unexpected": Target(maximum=0),
}
STAGE_S, QUICK_STAGE_S = 4.0, 2.0  # under each limit
SAMPLES, QUICK_SAMPLES = 500, 50
LIMIT_S = 500.0


def run(options: BenchOptions) -> BenchOutcome:
    """Open the bundle here, so that its self-test has passed; measure in a process of its own."""
    folder, state = make_bundle(options), options.work_folder / "state"
    with AdaptiveModel.open(folder, state_folder=state) as model:
        report = load_part(options, "report", model)
        count = QUICK_SAMPLES if options.quick else SAMPLES
        inputs = options.work_folder / "inputs.npy"
        np.save(inputs, model.prepare(report.images[:count]))
    stage_s = QUICK_STAGE_S if options.quick else STAGE_S
    places = [str(path.resolve()) for path in (folder, state, inputs)]
    command = [sys.executable, "-m", "benchmarks.elastic.process", *places, str(stage_s)]
    with options.progress.task("limits of memory", 8) as task:
        lines: list[str] = []
        with subprocess.Popen(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                lines.append(line)
                task.advance()
            if process.wait(timeout=LIMIT_S) != 0:
                raise RuntimeError("the measuring process failed; its errors are above")
    measured = json.loads(lines[-1])
    return BenchOutcome(measured["figures"], measured["table"], data="cifar10/test.zip#report")
