"""Pareto: subnets of ResNet-56 against separately trained networks and against other supernets."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.pareto import fastnas
from benchmarks.runner.run import BenchOptions, BenchOutcome, Target
from benchmarks.support.bundles import adapted_bundle, packaging_cost
from benchmarks.support.choice import Chooser, Chosen
from benchmarks.support.peers import Peer, Samples, load_samples, make_peers
from benchmarks.support.variants import MINUTES, curves, trained_variant, wins
from device_sdk.runtimes import OnnxRuntime

NETWORKS = ("resnet56", "resnet44", "resnet32", "resnet20")
TARGETS = {
    **{f"gap_{name}": Target(maximum=0.0) for name in ("resnet44", "resnet32", "resnet20")},
    **{f"gap_{name}_int8": Target(maximum=0.0) for name in NETWORKS},
    "int8_composed_over_whole": Target(maximum=1.05),
    "wins_over_pruning": Target(minimum=1.0),
}
CANDIDATES = 6  # of the search for each network, confirmed by measuring; the best that is quick enough is taken
BUDGETS, QUICK_BUDGETS = 10, 2  # at which supernets are compared
ROUNDS, QUICK_ROUNDS = 200, 20
QUICK_LIMIT_S = 2.0
RESAMPLES = 2000
_BATCH = 64

Right = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class Duel:
    """A network and the subnet chosen to replace it: the correctness of each on #report [count]."""

    peer: Peer
    peer_ratio: float
    chosen: Chosen | None
    peer_right: Right
    own_right: Right | None

    @property
    def gap_points(self) -> float:
        """The network's accuracy minus the subnet's; NaN if no subnet is fast enough."""
        return float("nan") if self.own_right is None else 100 * float(self.peer_right.mean() - self.own_right.mean())

    def row(self) -> dict[str, object]:
        row: dict[str, object] = {
            "what": self.peer.name,
            "ratio": self.peer_ratio,
            "accuracy": 100 * float(self.peer_right.mean()),
        }
        if self.chosen is None or self.own_right is None:
            return row
        low, high = _interval(self.peer_right, self.own_right)
        rival = self.chosen.beside.rival
        assert rival is not None
        latencies = {"full": self.chosen.beside.full, "network": rival, "subnet": self.chosen.latency}
        return row | {
            "gap_points": self.gap_points,
            "gap_low_points": low,
            "gap_high_points": high,
            "subnet": str(self.chosen.candidate.subnet),
            "subnet_ratio": self.chosen.ratio,
            "ratio_beside_it": self.chosen.beside.ratio(rival),
            "subnet_accuracy": 100 * float(self.own_right.mean()),
            "search_accuracy": 100 * self.chosen.candidate.accuracy,
            "expected_accuracy": 100 * (self.chosen.candidate.expected or 0.0),
            **{f"{name}_ms": one.median_ms for name, one in latencies.items()},
            **{f"{name}_p75_ms": one.p75_ms for name, one in latencies.items()},
        }


def run(options: BenchOptions) -> BenchOutcome:
    """Subnets are chosen on #search, one for each network and kind, and then looked at once on #report.

    fp32 networks meet fp32 subnets, int8 networks subnets of any renditions. Latency: batch 1, one thread, in turns.
    """
    search, calibration, report = (load_samples(options, part) for part in ("search", "calibration", "report"))
    networks = ["resnet20"] if options.quick else [*NETWORKS]
    peers = list(make_peers(options, networks, calibration.inputs))
    duels: list[Duel] = []
    costs: list[dict[str, object]] = []
    figures: dict[str, float] = {}
    with options.progress.task("duels", len(peers)) as task:
        for kind, renditions in (("fp32", ("fp32",)), ("int8", ("fp32", "int8"))):
            rivals = [peer for peer in peers if peer.rendition == kind]
            folder = adapted_bundle(options, renditions=renditions)
            costs.append({"what": f"zoo bundle, {kind}", **packaging_cost(folder)})
            with closing(Chooser(folder, search, options.progress)) as chooser:
                for peer in rivals:
                    duels.append(_duel(chooser, peer, report, options))
                    task.advance()
                if kind == "int8":
                    figures["int8_composed_over_whole"] = _int8_over_whole(chooser, rivals[0], options)
    budgets = QUICK_BUDGETS if options.quick else BUDGETS
    own, *others = curves(options, ["both", "pruning only", "tune only"], search, report, budgets=budgets)
    figures |= {f"gap_{duel.peer.name}": duel.gap_points for duel in duels if duel.peer.name != "resnet56"}
    figures |= {"wins_over_pruning": wins(own, others[0]), "wins_over_no_distillation": wins(own, others[1])}
    if fastnas.AVAILABLE:
        duels.append(_against_fastnas(networks[0], search, report, options))
        figures["gap_fastnas"] = duels[-1].gap_points
    table = [duel.row() for duel in duels] + costs + [row for curve in (own, *others) for row in curve.rows]
    return BenchOutcome(figures, table, data="chosen on cifar10/test.zip#search, judged on #report")


def _against_fastnas(network: str, search: Samples, report: Samples, options: BenchOptions) -> Duel:
    """FastNAS's pruned network against the supernet, trained for the same time."""
    peer = Peer("fastnas", "fp32", fastnas.pruned(options, network, search, minutes=MINUTES))
    with closing(Chooser(trained_variant(options, "both"), search, options.progress)) as chooser:
        return _duel(chooser, peer, report, options)


def _duel(chooser: Chooser, peer: Peer, report: Samples, options: BenchOptions) -> Duel:
    rounds = _rounds(options)
    ratio = chooser.rival_ratio(peer.model, rounds=rounds)
    limit_s = QUICK_LIMIT_S if options.quick else None
    chosen = chooser.best(ratio, peer.model, count=CANDIDATES, rounds=rounds, time_limit_s=limit_s)
    own = None if chosen is None else chooser.right(chosen.candidate.subnet, report)
    return Duel(peer, ratio, chosen, _right(peer, report), own)


def _int8_over_whole(chooser: Chooser, peer: Peer, options: BenchOptions) -> float:
    """The latency of the original path in 8 bits, composed, over that of ``peer``, the same model quantised whole."""
    beside = chooser.measured([chooser.original("int8")], peer.model, rounds=_rounds(options))
    assert beside.rival is not None
    return beside.subnets[0].median_ms / beside.rival.median_ms


def _rounds(options: BenchOptions) -> int:
    return QUICK_ROUNDS if options.quick else ROUNDS


def _right(peer: Peer, samples: Samples) -> Right:
    session = OnnxRuntime(threads=1).load_model(peer.model)
    try:
        parts = np.array_split(samples.inputs, -(-len(samples.inputs) // _BATCH))
        return np.concatenate([session.run([part])[0] for part in parts]).argmax(axis=1) == samples.labels
    finally:
        session.close()


def _interval(peer: Right, own: Right) -> tuple[float, float]:
    """The 95 % interval of the gap in points, by a paired bootstrap over images."""
    differences = 100.0 * (peer.astype(np.float64) - own)
    drawn = np.random.default_rng(0).integers(0, len(differences), size=(RESAMPLES, len(differences)))
    low, high = np.percentile(differences[drawn].mean(axis=1), [2.5, 97.5])
    return float(low), float(high)
