"""Hybrid training and joint search: router, base and global learned together; pairs of subnets chosen together."""

from __future__ import annotations

from benchmarks.hybrid.joint import joint_rows
from benchmarks.hybrid.paired import change_points, low_of
from benchmarks.hybrid.trained import COVERAGE, HYBRIDS, Answered, answered, kept_turns, loaded, made, over_http
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from device_sdk.data.datasets import load_dataset
from device_sdk.supernet.plan import Entropy

TARGETS = {
    "rb_minus_r_low": Target(minimum=0.0),
    "rb_base_turns_kept": Target(minimum=1),
    "rbg_minus_rb_low": Target(minimum=0.01),  # it is 0 where nothing was kept
    "rbg_global_turns_kept": Target(minimum=1),
    "hybrid_minus_cloud_low_points": Target(minimum=-0.5),
    "pool_gain_low_points": Target(minimum=-0.5),
    "coverage_error_deviations": Target(maximum=2.0),
    "joint_gain_low_points": Target(minimum=-0.5),
    "fallbacks": Target(maximum=0),
    "mismatched": Target(maximum=0),
}
COVERAGES = (0.9, 0.8, 0.7)


def run(options: BenchOptions) -> BenchOutcome:
    """Everything is chosen on #search and #calibration; #report is judged once, with paired intervals.

    ResNet-56 is right on all of CIFAR's training images, so the router learns from ten views of #search, and its
    coverage is tuned on #calibration. The copies of (rb) and (rbg) learn from the training images for 400 steps: first
    the base's batch-norm statistics, then the global's last blocks (from distorted images, of which it errs on some),
    then the base. A turn that made the hybrid worse on #search and #calibration is undone; the rows say which, and the
    figures how many were kept: (rb) is a method only if the base learned, (rbg) only if the global did. The
    router is fitted the same way for each. Accuracies at a coverage send the hardest share of #report exactly;
    ``run_…`` is the bundles' own plan with a real server.

    (r), (rb) and (rbg) are compared with the global model's answers alone. What a hybrid runs pools them with the
    base's own: ``pool_gain_points`` is what that adds to (rbg), ``hybrid_minus_cloud_points`` is (rbg) with it at 70 %
    coverage against the original global model on every image.
    """
    job = loaded(options)
    made_by = {name: made(options, job, name) for name in HYBRIDS}
    found = {name: answered(options, hybrid) for name, hybrid in made_by.items()}
    figures, rows = _hybrid_rows(found)
    rows += [{"what": f"({name}) training", "turn": turn} for name, one in made_by.items() for turn in one.report]
    measured = over_http(options, made_by["rbg"])
    tuned = len(load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#calibration"))
    best = found["rbg"]
    own = 100 * float((best.sent & best.asked_right | ~best.sent & best.base_right).mean())
    figures |= {
        "rb_base_turns_kept": kept_turns(made_by["rb"], "base"),
        "rbg_global_turns_kept": kept_turns(made_by["rbg"], "global"),
        "hybrid_minus_cloud_points": figures["rbg_pooled_minus_cloud_70"],
        "hybrid_minus_cloud_low_points": figures["rbg_pooled_minus_cloud_70"] - figures["rbg_pooled_cloud_interval"],
        "run_accuracy": measured["accuracy"],
        "run_coverage": 100 - measured["sent"],
        "coverage_error_points": abs(100 - measured["sent"] - 100 * COVERAGE),
        "coverage_error_deviations": coverage_deviations(measured["sent"], tuned=tuned, judged=len(best.labels)),
        "fallbacks": measured["fallbacks"],
        "mismatched": float(abs(own - measured["accuracy"]) * len(best.labels) > 100 * _ROUNDED * len(best.labels)),
    }
    more, joint = joint_rows(options)
    return BenchOutcome(
        figures | more, [*rows, *joint], data="cifar10/test.zip#search, #calibration; judged on #report"
    )


def coverage_deviations(sent: float, *, tuned: int, judged: int) -> float:
    """The error of the share ``sent``, in percent, in standard deviations of what chance alone makes of it.

    ``tuned``, ``judged``: the samples that set the threshold, and those that were sent by it.
    """
    deviation = (COVERAGE * (1 - COVERAGE) * (1 / tuned + 1 / judged)) ** 0.5
    return abs(1 - sent / 100 - COVERAGE) / deviation


_ROUNDED = 0.001  # share of answers that rounding may change between a batch here and one at the server


def _hybrid_rows(found: dict[str, Answered]) -> tuple[dict[str, float], list[dict[str, object]]]:
    figures: dict[str, float] = {}
    rights = {name: one.right_at(COVERAGE) for name, one in found.items()}
    for new, old in (("rb", "r"), ("rbg", "rb")):
        change = change_points(rights[new], rights[old])
        figures[f"{new}_minus_{old}"], figures[f"{new}_interval"] = change
        figures[f"{new}_minus_{old}_low"] = low_of(change)
    cloud = found["r"].global_right
    for name in found:
        figures[f"{name}_accuracy_70"] = 100 * float(rights[name].mean())
        figures[f"{name}_minus_cloud_70"], figures[f"{name}_cloud_interval"] = change_points(rights[name], cloud)
        pooled = found[name].right_at(COVERAGE, pooled=True)
        figures[f"{name}_pooled_accuracy_70"] = 100 * float(pooled.mean())
        above, interval = change_points(pooled, cloud)
        figures[f"{name}_pooled_minus_cloud_70"], figures[f"{name}_pooled_cloud_interval"] = above, interval
    gain = change_points(pooled, rights[name])
    figures["pool_gain_points"], figures["pool_gain_interval"] = gain
    figures["pool_gain_low_points"] = low_of(gain)
    rows: list[dict[str, object]] = []
    for name, one in found.items():
        for what, decider, pools in (
            (f"({name})", None, False),
            (f"({name}), entropy", Entropy(0.0), False),
            (f"({name}), pooled", None, True),
        ):
            row: dict[str, object] = {"what": what, "sent_by_threshold": 100 * float(one.sent.mean())}
            for c in COVERAGES:
                row[f"accuracy_{100 * c:.0f}"] = 100 * float(one.right_at(c, decider, pooled=pools).mean())
            rows.append(row)
        either = one.base_right | one.global_right
        rows.append(
            {
                "what": f"({name}) alone",
                "base": 100 * float(one.base_right.mean()),
                "global": 100 * float(one.global_right.mean()),
                "pooled": 100 * float(one.asked_right.mean()),
                "at_least_one": 100 * float(either.mean()),
            }
        )
    return figures, rows
