"""A server's model and what it may be sent: settings of a connection, names of paths, pooling, shares."""

from __future__ import annotations

import math
import threading
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from device_sdk.bundles.hybrid import HYBRID_PATH
from device_sdk.bundles.manifest import Manifest
from device_sdk.data.image_files import QUALITY, check_quality
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.errors import UsageError
from device_sdk.runtimes.port import Array
from device_sdk.supernet.deciders.port import ease, hard
from device_sdk.supernet.plan import Decider, Edge, RemoteRef, Subnet

IMAGES = ":images"  # suffix of the name of a model that takes raw images
JPEG = ":jpeg"  # the same, images as JPEGs
TEXTS = ":texts"  # the same, texts
MAX_NAME = 2_048  # characters: addresses are longer than this nowhere


def path_model(bundle: str, path: Subnet, *, images: bool = False) -> str:
    """The name of the model that runs ``path`` of ``bundle``.

    Raises:
        UsageError: the path runs at another input size, or has too many edges for a name.
    """
    if path.input_size:
        raise UsageError("a server names paths at the model's own input size only")
    name = f"{bundle}@{','.join(map(str, path.edges))}{IMAGES if images else ''}"
    if len(name) > MAX_NAME:
        raise UsageError(f"the path's name at a server has {len(name)} characters, above {MAX_NAME}")
    return name


def takes_jpegs(manifest: Manifest) -> bool:
    """True if a server offers a model that takes JPEGs for a bundle: its only input is an image of 1 or 3 channels."""
    first = manifest.cut_points[0].tensors
    return len(first) == 1 and len(first[0].shape) == 3 and _channels(manifest) in (1, 3)


def _channels(manifest: Manifest) -> int:
    """Channels of the images that the model takes; 0 where it takes none."""
    prepared = manifest.preprocessing
    return prepared.channels if isinstance(prepared, Preprocessing) else 0


def without_form(model: str) -> str:
    """The name of the model that takes tensors, of one that takes raw samples."""
    return next((model.removesuffix(one) for one in (IMAGES, JPEG, TEXTS) if model.endswith(one)), model)


def bundle_of(model: str) -> str:
    """The bundle that a model of this name comes from."""
    return model.partition("@")[0].partition(":")[0]


def named_path(manifest: Manifest, model: str) -> Subnet | None:
    """The path that a model's name states; None for a name without one.

    Raises:
        UsageError: the bundle has no such path.
    """
    _, marked, rest = model.partition("@")
    if not marked:
        return None
    if len(model) > MAX_NAME:
        raise UsageError(f"the name of a model has more than {MAX_NAME} characters")
    text = without_form(rest)
    if text == HYBRID_PATH and manifest.hybrid is not None:
        return manifest.hybrid.subnet
    path = Subnet(tuple(Edge(block, rendition or "fp32") for block, _, rendition in _edges(text)))
    manifest.supernet().check(path)
    return path


def _edges(text: str) -> list[tuple[str, str, str]]:
    return [edge.partition("@") for edge in text.split(",")]


@dataclass(frozen=True)
class LogarithmicPool:
    """Logits weighed by ``device`` and ``server`` and added: a product of powers of both distributions.

    Each weight holds its network's temperature and how much it counts (``policies/deciding/decider_fitting``).

    Raises:
        UsageError: a weight is negative or not finite, or both are 0.
    """

    device: float
    server: float

    def __post_init__(self) -> None:
        weights = (self.device, self.server)
        if not all(math.isfinite(one) and one >= 0 for one in weights) or not any(weights):
            raise UsageError(
                f"a pool's weights are {self.device:g} and {self.server:g}: none may be below 0, and not both 0"
            )

    def pooled(self, device: Array, server: Array) -> Array:
        """Logits [batch, classes] of both on the same samples -> theirs together, float32 [batch, classes]."""
        found = self.device * device.astype(np.float64) + self.server * server.astype(np.float64)
        return np.asarray(found.astype(np.float32))


_REMEMBERED = 4096  # eases
_FEWEST = 64  # below, they say less than the limit that was calibrated
_HORIZON = 128  # samples over which what was asked too much or too little is made up for


class AskedShare:
    """Selects hard samples, so that ``share`` of all samples are hard. Thread-safe.

    A sample is hard if its ease lies below a quantile of the eases seen last, its own batch's among them; until there
    are ``_FEWEST`` eases, the decider's own threshold holds. The quantile is the share, corrected to make up for an
    excess or a deficit so far over ``_HORIZON`` samples. No labels are needed. Logits that are no answer are hard.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._lock = threading.Lock()  # guards all that follows
        self._decider: Decider | None = None
        self._eases = np.empty(0)
        self._owed = 0.0  # samples

    def hard(self, decider: Decider, logits: Array) -> npt.NDArray[np.bool_]:
        """Mask of hard samples: logits [batch, classes] -> [batch]. Another decider begins anew."""
        eases = ease(decider, logits)
        with self._lock:
            if decider != self._decider:
                self._decider, self._eases, self._owed = decider, np.empty(0), 0.0
            known = np.isfinite(eases)
            self._eases = np.concatenate([self._eases, eases[known]])[-_REMEMBERED:]
            found = hard(decider, logits) if len(self._eases) < _FEWEST else ~known | (eases < self._limit())
            self._owed += self._share * len(eases) - float(np.count_nonzero(found))
        return found

    def _limit(self) -> float:
        share = self._share + self._owed / _HORIZON
        if share <= 0:
            return -np.inf
        return np.inf if share >= 1 else float(np.quantile(self._eases, share))


Privacy = Literal["never", "activations", "inputs"]

MAX_TIMEOUT_S = 3600.0


@dataclass(frozen=True, kw_only=True)
class RemoteModel:
    """A model at a server, and what may be sent to it.

    ``server``: the URL before ``/v2``. ``privacy``: ``never`` sends nothing, ``activations`` sends intermediate
    activations, ``inputs`` also the samples themselves. ``timeout_s``: for all samples of a call together.
    ``max_batch``: samples per request. ``jpeg_quality``: 1 to 95, for a model that takes JPEGs (``NAME:jpeg``); the
    accuracy of a plan holds for the quality with which it was measured. ``pool``: how its answers to hard samples are
    pooled with the device's own; None: they replace them. ``share``: of the samples that reach the end of a plan that
    asks, kept by moving its decider's limit (``asked_share``); None: the limit stays.

    Raises:
        UsageError: a value is out of range.
    """

    server: str
    model: str
    token: str | None = field(default=None, repr=False)
    privacy: Privacy = "never"
    timeout_s: float = 1.0
    max_batch: int = 64
    jpeg_quality: int = QUALITY
    pool: LogarithmicPool | None = None
    share: float | None = None

    def __post_init__(self) -> None:
        if not self.server or not self.model:
            raise UsageError("a remote model needs a server and the name of a model there")
        if self.privacy not in get_args(Privacy):
            raise UsageError(
                f"there is no privacy setting {self.privacy!r}", hint="known: " + ", ".join(get_args(Privacy))
            )
        if not (math.isfinite(self.timeout_s) and 0 < self.timeout_s <= MAX_TIMEOUT_S):
            raise UsageError(f"timeout_s is {self.timeout_s}; it must be above 0 and at most {MAX_TIMEOUT_S:.0f}")
        if self.share is not None and not 0 <= self.share <= 1:
            raise UsageError(f"the share {self.share:g} is not between 0 and 1")
        check_quality(self.jpeg_quality)
        if self.max_batch < 1:
            raise UsageError(f"max_batch is {self.max_batch}; it must be at least 1")


def why_unfit(model: RemoteModel | None, server: RemoteRef, *, sends_inputs: bool) -> str | None:
    """Why the connected ``model`` cannot serve as ``server``; None if it can."""
    if model is None:
        return f"no server is connected that has {server}"
    if not server.is_named(model.model):
        return f"the plan was made for {server}, connected is {model.model}"
    if model.privacy == "never" or (sends_inputs and model.privacy != "inputs"):
        sent = "inputs" if sends_inputs else "activations"
        return f"the plan sends {sent} to {model.model}, which the privacy setting {model.privacy} forbids"
    return None
