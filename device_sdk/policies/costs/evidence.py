"""Evidence by which plans are judged: logits on private samples, and properties of the network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from device_sdk.offload.remote_model import LogarithmicPool
from device_sdk.policies.splitting.path_splits import NO_HANDLING, Handling
from device_sdk.runtimes.port import Array
from device_sdk.supernet.cost import CostModel, Uplink
from device_sdk.supernet.plan import Edge, RemoteRef, Subnet
from device_sdk.tasks.margins import by_margin, label_margins


@dataclass(frozen=True)
class Evidence:
    """Logits [count, classes] on the same private samples, and their ``labels`` [count].

    ``ends``: of whole paths, also of those whose rest a server runs; ``exits``: of an exit's branch, by the edges
    before it, its id and its rendition; ``servers``: of the server's models on the inputs. ``views``: of whole paths
    on views of the samples (``data/views``), [views, count, classes], where deciders may learn from them. ``received``:
    of whole paths whose activations travel in few bits, by cut point and bits of each tensor. ``pools``: how a server's
    answer to a hard sample is pooled with the device's own; without one it replaces it. ``prepare_ms``: milliseconds of
    preparing a sample at an input size; 0 where it was not measured. ``margin_scale``: answers count by their margins,
    on this scale (``tasks.margins.by_margin``); 0: as right or wrong.
    """

    labels: npt.NDArray[np.int64]
    ends: Mapping[Subnet, Array] = field(default_factory=dict)
    exits: Mapping[tuple[tuple[Edge, ...], str, str], Array] = field(default_factory=dict)
    servers: Mapping[RemoteRef, Array] = field(default_factory=dict)
    views: Mapping[Subnet, Array] = field(default_factory=dict)
    received: Mapping[tuple[Subnet, int, tuple[int, ...]], Array] = field(default_factory=dict)
    pools: Mapping[RemoteRef, LogarithmicPool] = field(default_factory=dict)
    prepare_ms: Mapping[tuple[int, ...], float] = field(default_factory=dict)
    margin_scale: float = 0.0

    @property
    def count(self) -> int:
        """The number of samples."""
        return len(self.labels)

    def right(self, logits: Array) -> npt.NDArray[np.bool_]:
        """Mask of the samples that ``logits`` [..., count, classes] classify correctly: [..., count]."""
        return np.asarray(logits.argmax(axis=-1) == self.labels)

    def credit(self, logits: Array) -> npt.NDArray[np.bool_] | npt.NDArray[np.float64]:
        """Worth of each answer of ``logits`` [count, classes], 0 to 1: [count]."""
        return by_margin(self.margins(logits), self.margin_scale) if self.margin_scale else self.right(logits)

    def margins(self, logits: Array) -> npt.NDArray[np.float64]:
        """Logits of the labels minus the largest of the others: [count, classes] → [count]."""
        return label_margins(logits, self.labels).astype(np.float64)

    def asked(self, server: RemoteRef, own: Array) -> Array | None:
        """The logits of hard samples [count, classes] once ``server`` was asked; None if its answers are not known.

        ``own``: the device's, on the same samples or on views of them [..., count, classes].
        """
        answers, pool = self.servers.get(server), self.pools.get(server)
        return answers if answers is None or pool is None else pool.pooled(own, answers)

    def part(self, positions: npt.NDArray[np.int64]) -> Evidence:
        """The same for the samples at ``positions``."""
        return Evidence(
            self.labels[positions],
            ends={subnet: logits[positions] for subnet, logits in self.ends.items()},
            exits={branch: logits[positions] for branch, logits in self.exits.items()},
            servers={server: logits[positions] for server, logits in self.servers.items()},
            views={subnet: logits[:, positions] for subnet, logits in self.views.items()},
            received={crossing: logits[positions] for crossing, logits in self.received.items()},
            pools=self.pools,
            prepare_ms=self.prepare_ms,
            margin_scale=self.margin_scale,
        )


@dataclass(frozen=True, kw_only=True)
class Network:
    """Link between a device and its servers, and the costs of requests over it.

    ``server``: cost model of the machine that runs tails; ``answer_ms``: latency of a server's model for one input;
    ``input_bytes``: size of a request with one input, ``request_bytes``: where it differs for a server's model;
    ``overhead_bytes``: added to a packet by a request;
    ``handling``: time of a packet beyond its transfer and the tail.
    """

    uplink: Uplink
    server: CostModel | None = None
    answer_ms: Mapping[RemoteRef, float] = field(default_factory=dict)
    input_bytes: int = 0
    request_bytes: Mapping[RemoteRef, int] = field(default_factory=dict)
    overhead_bytes: int = 0
    handling: Handling = NO_HANDLING
