"""Chosen subnets and rungs, measured in one interleaved run on a quiet machine, and judged on the same samples."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import numpy.typing as npt

from benchmarks.sure.networks import Samples
from device_sdk.bundles.bundle import Bundle
from device_sdk.profiling.timing import Patience, measure_interleaved
from device_sdk.runtimes import OnnxRuntime
from device_sdk.runtimes.port import LoadedStretch
from device_sdk.supernet.plan import Subnet

Right = npt.NDArray[np.bool_]

_ROUNDS, _WARMUP = 60, 3
_PATIENCE = Patience(rounds=_ROUNDS, precision=0.005, limit_s=40.0, least=20)
_CHUNK, _BATCH = 64, 8


class Judge:
    """Loads subnets once, on one thread each, as deployed."""

    def __init__(self, bundle: Bundle) -> None:
        self._bundle = bundle
        self._runtime = OnnxRuntime(threads=1)
        self._sessions: dict[Subnet, LoadedStretch] = {}

    def ratios(self, subnets: Sequence[Subnet]) -> dict[Subnet, float]:
        """Median latencies relative to the full model's, all measured in turns."""
        full = self._bundle.supernet.original
        channels, *own = self._bundle.supernet.cut_points[0].tensors[0].shape
        calls = {}
        for subnet in dict.fromkeys([full, *subnets]):
            blank = np.zeros((1, channels, *(subnet.input_size or own)), dtype=np.float32)
            calls[str(subnet)] = partial(self._session(subnet).run, [blank])
        found = measure_interleaved(calls, rounds=_ROUNDS, warmup=_WARMUP, patience=_PATIENCE)
        return {subnet: found[str(subnet)].median_ms / found[str(full)].median_ms for subnet in [full, *subnets]}

    def right(self, subnets: Sequence[Subnet], samples: Samples) -> dict[Subnet, Right]:
        """Correctness on each sample: [count]. Subnets of one input size share the prepared samples."""
        inputs = samples.inputs(self._bundle)
        found: dict[Subnet, list[Right]] = {subnet: [] for subnet in subnets}
        by_size: dict[tuple[int, ...], list[Subnet]] = {}
        for subnet in found:
            by_size.setdefault(subnet.input_size, []).append(subnet)
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            for size, same in by_size.items():
                for at in range(0, len(samples.labels), _CHUNK):
                    positions = np.arange(at, min(at + _CHUNK, len(samples.labels)))
                    prepared, labels = inputs.take(positions, size), samples.labels[positions]
                    answers = pool.map(partial(_answers, prepared), [self._session(one) for one in same])
                    for subnet, answer in zip(same, answers, strict=True):
                        found[subnet].append(answer == labels)
        return {subnet: np.concatenate(parts) for subnet, parts in found.items()}

    def _session(self, subnet: Subnet) -> LoadedStretch:
        if subnet not in self._sessions:
            self._sessions[subnet] = self._runtime.load(self._bundle.stretch(subnet.edges))
        return self._sessions[subnet]

    def close(self) -> None:
        """Close the sessions."""
        for session in self._sessions.values():
            session.close()


def _answers(prepared: npt.NDArray[np.float32], session: LoadedStretch) -> npt.NDArray[np.int64]:
    batches = (prepared[at : at + _BATCH] for at in range(0, len(prepared), _BATCH))
    return np.concatenate([session.run([batch])[-1].argmax(axis=-1) for batch in batches])
