"""Tasks: each adapted on a device, with labels and without, against the ladder of plain networks; texts with exits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.tasks.asked_texts import asked_texts
from benchmarks.tasks.case import Case
from benchmarks.tasks.embeddings import sentences
from benchmarks.tasks.judging import CaseJudge, case_figures
from benchmarks.tasks.maps import cells, streets
from benchmarks.tasks.sensors import exercises
from benchmarks.tasks.sounds import digits
from benchmarks.tasks.text_exits import saved_by_exits
from benchmarks.tasks.texts import texts_by_part, topics
from device_sdk.session.adaptive_model import AdaptiveModel

TARGETS = {
    "worst_below_ladder": Target(maximum=1.0),
    "unlabelled_below_labelled": Target(maximum=1.0),
    "exits_saved": Target(minimum=0.3),
    "exits_lost_points": Target(maximum=0.5),
    "asked_gap_share": Target(minimum=0.5),
    "asked_sent": Target(maximum=0.3),
}
RATIOS, QUICK_RATIOS = (0.7, 0.45), (0.5,)
NARROW_RATIO = 0.15  # of the latency of texts, which no rung keeps
CASES: Mapping[str, Callable[[BenchOptions], Case]] = {
    "texts": topics,
    "maps": streets,
    "boxes": cells,
    "sounds": digits,
    "sensors": exercises,
    "embeddings": sentences,
}


def run(options: BenchOptions) -> BenchOutcome:
    """Each case on one thread; plans are chosen on one part of the samples and judged once on another.

    1. adapt to budgets, with labels and without; 2. the best rung of the ladder (a rendition and an input size
    throughout) that keeps each budget, measured, picked on the same samples by the metric itself; 3. of texts, the
    fastest plan with exits that loses half a point at most, and a plan faster than all rungs; 4. a small network of
    texts, which asks a server that has the large one about hard texts.

    Raises:
        FileNotFoundError, ModuleNotFoundError: data are missing; says which, and where they come from.
    """
    figures: dict[str, float] = {}
    rows: list[dict[str, object]] = []
    data = []
    for name, make in CASES.items():
        case = make(options)
        data.append(case.data)
        with AdaptiveModel.open(case.folder, state_folder=options.work_folder / "state" / name) as model:
            judge = CaseJudge(case, model, options.progress)
            judged = [one for ratio in (QUICK_RATIOS if options.quick else RATIOS) for one in judge.at(ratio)]
            full = judge.full()
            figures |= case_figures(case, full, judged)
            rows += [one.row(case) for one in (full, *judged)]
            if name == "texts":
                exits = saved_by_exits(case, judge)
                narrow = judge.adapted(NARROW_RATIO)
                figures |= exits.figures() | {f"adapted_texts_at_{NARROW_RATIO:g}": narrow.percent}
                rows += [exits.row(case), narrow.row(case)]
        if name == "texts":
            asked = asked_texts(case, texts_by_part(options), options)
            figures |= asked.figures()
            rows += asked.rows(case)
    return BenchOutcome(_with_worst(figures), rows, data="; ".join(data))


def _with_worst(figures: Mapping[str, float]) -> dict[str, float]:
    """With the worst of all cases, which have the targets, in front."""
    return {
        "worst_below_ladder": max(value for name, value in figures.items() if name.startswith("below_ladder_")),
        "unlabelled_below_labelled": max(value for name, value in figures.items() if name.startswith("unlabelled_")),
        **figures,
    }
