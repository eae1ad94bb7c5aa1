"""Real size: EfficientNet-Lite0 on photographs of 224 × 224 against smaller inputs, 8 bits, and both."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.real_size import data
from benchmarks.real_size.choice import Chosen, choose, interval
from benchmarks.real_size.photographs import Photographs
from benchmarks.real_size.rivals import Rival, make_rivals
from benchmarks.support.bundles import CHECKOUT
from device_sdk.bundles.bundle import Bundle
from device_sdk.execution.workspace import Workspace
from device_sdk.profiling.profile import profile
from device_sdk.runtimes import OnnxRuntime
from pathweave.bench import BenchOptions, BenchOutcome, Target

RATIOS, QUICK_RATIOS = (0.8, 0.6, 0.45, 0.35, 0.25), (0.45,)
LARGEST_DROPS = {0.45: 3.0, 0.35: 8.0, 0.25: 15.0}  # of the untrained bundle below the full model, in points
SEARCH_S, QUICK_SEARCH_S = 20.0, 3.0
MODES = {"fp32": ("fp32",), "int8": ("fp32", "int8")}

TARGETS = {
    **{f"gap_to_simple_{mode}_{ratio * 100:.0f}": Target(maximum=0.0) for mode in MODES for ratio in RATIOS},
    **{f"gain_over_simple_{mode}_points": Target(minimum=0.0) for mode in MODES},
    **{f"untrained_drop_{ratio * 100:.0f}_points": Target(maximum=drop) for ratio, drop in LARGEST_DROPS.items()},
    "adapt_seconds": Target(maximum=45.0),
    "adapt_peak_mb": Target(maximum=600.0),
    "longer_search_gain_points": Target(maximum=0.5),
    "open_first_s": Target(maximum=2.0),
    "open_again_s": Target(maximum=0.2),
}

Right = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class _Duel:
    """A budget: the chosen subnet and the best simple network of at most its latency, evaluated on #report."""

    mode: str
    ratio: float
    chosen: Chosen
    own: Right
    rival: Rival | None
    rival_right: Right | None

    @property
    def gap_points(self) -> float:
        """The simple network's accuracy minus the subnet's; NaN if none is fast enough."""
        return float("nan") if self.rival_right is None else 100 * float(self.rival_right.mean() - self.own.mean())

    def row(self) -> dict[str, object]:
        """A row of the table."""
        row: dict[str, object] = {
            "what": f"{self.mode} within {self.ratio:g}",
            "subnet": str(self.chosen.subnet),
            "ratio": self.chosen.ratio,
            "accuracy": 100 * float(self.own.mean()),
            "subnets_evaluated": self.chosen.evaluated,
            "search_seconds": self.chosen.seconds,
        }
        if self.rival is None or self.rival_right is None:
            return row
        low, high = interval(self.rival_right, self.own)
        simple = {"simple": self.rival.name, "simple_ratio": self.rival.ratio}
        accuracy = {"simple_accuracy": 100 * float(self.rival_right.mean()), "gap_points": self.gap_points}
        return row | simple | accuracy | {"gap_low_points": low, "gap_high_points": high}


def run(options: BenchOptions) -> BenchOutcome:
    """Choose subnets on #search with ``adapt`` and evaluate them once on #report."""
    report = data.photographs(options, "report")
    trained, untrained = data.bundle(options, trained=True), data.bundle(options, trained=False)
    figures: dict[str, float] = {}
    table: list[dict[str, object]] = []
    rivals = make_rivals(options, report)
    figures["full_accuracy"] = 100 * float(rivals.full_model_correct.mean())
    table += rivals.rows()
    for mode in MODES:
        duels = _duels(options, trained, mode, rivals.quickest, report)
        gaps = [duel.gap_points for duel in duels]
        names = (f"gap_to_simple_{mode}_{duel.ratio * 100:.0f}" for duel in duels)
        figures |= dict(zip(names, gaps, strict=True))
        figures[f"gain_over_simple_{mode}_points"] = -float(np.mean(gaps))
        table += [duel.row() for duel in duels]
    ratios = QUICK_RATIOS if options.quick else tuple(LARGEST_DROPS)
    for duel in _duels(options, untrained, "int8", rivals.quickest, report, ratios=ratios):
        drop = figures["full_accuracy"] - 100 * float(duel.own.mean())
        figures[f"untrained_drop_{duel.ratio * 100:.0f}_points"] = drop
        table.append(duel.row() | {"what": f"untrained, int8 within {duel.ratio:g}"})
    return BenchOutcome(figures | _adapting(options, trained), table, data="imagenette/val.zip")


def _duels(
    options: BenchOptions,
    folder: Path,
    mode: str,
    quickest: Callable[[float, tuple[str, ...]], Rival | None],
    report: Photographs,
    *,
    ratios: Sequence[float] = (),
) -> list[_Duel]:
    """One duel per budget. ``quickest``: the best rival within a ratio and the renditions of the mode."""
    runtime = OnnxRuntime(threads=1)
    bundle = Bundle.open(folder, accepts=lambda one: one.runtime == "onnxruntime" and one.name in MODES[mode])
    measured = profile(Workspace(bundle, runtime), progress=options.progress)
    search = data.photographs(options, "search")
    limit_s = QUICK_SEARCH_S if options.quick else SEARCH_S
    duels = []
    for ratio in ratios or (QUICK_RATIOS if options.quick else RATIOS):
        chosen = choose(bundle, runtime, measured, search, ratio, limit_s=limit_s, progress=options.progress)
        # speed drift since the profile: a subnet within the milliseconds may be over the ratio, then rivals may be too
        rival = quickest(max(ratio, chosen.ratio), MODES[mode])
        own = chosen.right(bundle, runtime, report)
        duels.append(_Duel(mode, ratio, chosen, own, rival, None if rival is None else rival.right))
    return duels


def _adapting(options: BenchOptions, folder: Path) -> dict[str, float]:
    """Time and memory of ``open`` and ``adapt``, in a separate process."""
    places = [str(path.resolve()) for path in (folder, options.data_folder)]
    command = [sys.executable, "-m", "benchmarks.real_size.adapt", *places, "0.45"]
    if options.quick:
        command.append("--quick")
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))
