"""Hard samples that get the device's and the server's answers pooled, against the server's alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from benchmarks.hard_samples.answers import Answers
from benchmarks.hard_samples.judging import SENT, Pair, mean_and_low
from device_sdk.offload.remote_model import LogarithmicPool, RemoteModel
from device_sdk.policies.deciding.decider_fitting import Fitted, Viewed, fit_best_logistic, fit_pool
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.supernet.deciders.port import ease, hard, with_limit
from device_sdk.supernet.plan import Ask, Entropy, Logistic, Plan, RemoteRef

Eases = npt.NDArray[np.float64]
_BATCH = 64
_ROUNDED = 0.001  # share of answers that rounding may change between a batch here and one at the server
_RUN = 0.3  # share sent in the real run


def pooled_rows(
    model: AdaptiveModel, server: RemoteModel, tuning: Answers, views: Viewed, report: Answers, ours: Eases
) -> tuple[dict[str, float], list[dict[str, object]]]:
    """The pool and a decider for it are fitted on ``tuning`` and judged on ``report``.

    ``cifar10_pool_gain_…``: with the eases of ``ours`` on the report, which was fitted to the server's answers alone.
    ``pooled_minus_cloud_…``: with the pool's own decider, against the server's answers to everything.
    """
    pool = fit_pool(tuning.small, tuning.large, tuning.labels)
    if pool is None:
        return {f"cifar10_pool_gain_{100 - 100 * s:.0f}": 0.0 for s in SENT}, [
            {"what": "pooled", "failure": "the device's answers add nothing"}
        ]
    fitted = _decider(tuning, views, pool)
    pooled = Pair(report.here, _right(pool, report))
    figures: dict[str, float] = {"pool_device_weight": pool.device, "pool_server_weight": pool.server}
    own = ease(fitted.decider, report.small)
    figures |= report.pair.pool_gains("cifar10", pooled, ours)
    for share in SENT:
        kept = round(100 - 100 * share)
        above = pooled.system(own, share).astype(float) - report.server
        figures[f"pooled_minus_cloud_{kept}"], figures[f"pooled_minus_cloud_low_{kept}"] = mean_and_low(above)
    rows: list[dict[str, object]] = []
    for name, eases in (("entropy", ease(Entropy(0.0), report.small)), ("ours", own)):
        row: dict[str, object] = {"what": f"pooled: {name}", "area": 100 * pooled.area(eases)}
        row |= {f"accuracy_{100 - 100 * s:.0f}": 100 * float(pooled.system(eases, s).mean()) for s in SENT}
        rows.append(row)
    rows.append({"what": "pooled: everything sent", "accuracy_100": 100 * float(pooled.server.mean())})
    return figures | _really_run(model, replace(server, pool=pool), fitted, pool, report), rows


def _decider(tuning: Answers, views: Viewed, pool: LogarithmicPool) -> Fitted[Logistic]:
    """Decider fitted to samples that gain nothing from the server, even with pooled answers."""
    easy = tuning.here | ~_right(pool, tuning)
    right = views.logits.argmax(axis=-1) == tuning.labels
    asked = np.stack([pool.pooled(one, tuning.large).argmax(axis=1) == tuning.labels for one in views.logits])
    losses, shown = tuning.here & ~_right(pool, tuning), Viewed(views.logits, right | ~asked, right & ~asked)
    found = fit_best_logistic(tuning.small, easy, losses=losses, views=shown)
    assert found is not None
    return found


def _right(pool: LogarithmicPool, answers: Answers) -> npt.NDArray[np.bool_]:
    return np.asarray(pool.pooled(answers.small, answers.large).argmax(axis=1) == answers.labels)


def _really_run(
    model: AdaptiveModel, server: RemoteModel, fitted: Fitted[Logistic], pool: LogarithmicPool, report: Answers
) -> dict[str, float]:
    """The plan at 70 % coverage over HTTP: its accuracy, and 1 if it differs from separate answers, else 0."""
    decider = with_limit(fitted.decider, float(np.quantile(fitted.eases, _RUN)))
    model.remote.connect(server)
    model.use(Plan(model.bundle.supernet.original, hard=Ask(decider, RemoteRef())))
    batches = [report.images[at : at + _BATCH] for at in range(0, len(report.images), _BATCH)]
    right = np.concatenate([model(one).output.argmax(axis=1) for one in batches]) == report.labels
    expected = np.where(hard(decider, report.small), _right(pool, report), report.here)
    return {
        "pooled_run_accuracy": 100 * float(right.mean()),
        "pooled_run_mismatched": float(np.count_nonzero(right != expected) > _ROUNDED * len(right)),
    }
