"""The teacher's features, one cut point at a time."""

from __future__ import annotations

import torch

from packager.tracing.traced_model import TracedModel

BATCH = 16


class TeacherFeatures:
    """Moves ``samples`` [count, *input] through the original blocks; holds the features of one cut point at a time.

    ``limit_bytes`` bounds the memory: where features are large, ``at`` returns fewer samples.
    """

    def __init__(self, traced: TracedModel, samples: torch.Tensor, *, limit_bytes: int) -> None:
        self._traced = traced
        self._samples = samples
        self._limit_bytes = limit_bytes
        self._position = 0
        self._held = samples[:0]

    def at(self, position: int, count: int) -> torch.Tensor:
        """Features [samples, *shape] at cut point ``position`` of up to ``count`` samples, at least one.

        ``position`` must not decrease between calls.
        """
        assert position >= self._position, "features are only moved forwards"
        fitting = self._limit_bytes // max(1, sample_bytes(self._traced, self._position, position))
        count = min(count, len(self._samples), max(1, fitting))
        moved = run_originals(self._traced, self._position, position, self._held[:count])
        new = run_originals(self._traced, 0, position, self._samples[len(moved) : count])
        self._held, self._position = torch.cat([moved, new]), position
        return self._held


def run_originals(traced: TracedModel, start: int, end: int, features: torch.Tensor) -> torch.Tensor:
    """The features at cut point ``end`` from those at ``start`` [count, *shape], in batches; no taps in between."""
    if start == end:
        return features
    made = []
    with torch.no_grad():
        for batch in features.split(BATCH) if len(features) else (features,):
            for block in traced.blocks[start:end]:
                batch = block(batch) if len(features) else batch
            made.append(batch)
    if not len(features):
        return torch.empty(0, *traced.tensors[end].shape)
    return torch.cat(made)


def sample_bytes(traced: TracedModel, start: int, end: int) -> int:
    """Bytes per sample at the largest of the cut points ``start`` to ``end``."""
    return max(traced.tensors[position].nbytes for position in range(start, end + 1))
