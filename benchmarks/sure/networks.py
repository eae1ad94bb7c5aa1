"""The networks of ``sure``: bundles, private samples to adapt on, and samples to judge on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.real_size.photographs import load_photographs
from benchmarks.runner.run import BenchOptions
from benchmarks.support.bundles import adapted_bundle
from benchmarks.support.lite import lite_bundle, missing_weights
from device_sdk.bundles.bundle import Bundle
from device_sdk.data.datasets import load_dataset
from device_sdk.data.inputs import RawInputs
from device_sdk.random_source import SplitMix64

REPORTED, QUICK_SAMPLES = 500, 60
TRAINED, UNTRAINED = "lite0 trained", "lite0 untrained"

Images = Sequence[npt.NDArray[np.uint8]]


@dataclass(frozen=True)
class Samples:
    """Raw images uint8 [height, width, channels] and their labels [count]."""

    images: Images
    labels: npt.NDArray[np.int64]

    def inputs(self, bundle: Bundle) -> RawInputs:
        """The images as ``bundle`` takes them, at any of its input sizes."""
        channels, height, width = bundle.manifest.cut_points[0].tensors[0].shape
        return RawInputs(self.images, bundle.manifest.preprocessing.of_images(), (channels, height, width))


@dataclass(frozen=True)
class SureNetwork:
    """A bundle with the samples that it is adapted on (``private``) and judged on (``report``).

    ``seeds``: adaptations per budget and condition at most; as many as begin within ``seconds``, and at least one.
    ``time_limit_s``: of each search.
    """

    name: str
    folder: Path
    private: Samples
    report: Samples
    seconds: float
    time_limit_s: float
    seeds: int = 20


@dataclass(frozen=True)
class Skipped:
    """A network that could not be had."""

    name: str
    reason: str


@dataclass(frozen=True)
class _Entry:
    name: str
    make: Callable[[BenchOptions], Path]
    seconds: float
    time_limit_s: float
    photographs: bool = True
    variant: int | None = None  # of EfficientNet-Lite, whose weights may be missing


# Lite2 is the MobileNet: inverted residual blocks at 260 × 260. Twenty seeds of every network do not fit into half an
# hour: each gets its seconds, and the result says how many seeds that were.
_ALL = (
    _Entry("resnet56", lambda o: adapted_bundle(o, renditions=("fp32", "int8")), 240.0, 1.5, photographs=False),
    _Entry(TRAINED, lambda o: lite_bundle(o, 0, trained=True), 120.0, 5.0, variant=0),
    _Entry(UNTRAINED, lambda o: lite_bundle(o, 0), 120.0, 5.0, variant=0),
    _Entry("lite1", lambda o: lite_bundle(o, 1), 0.0, 5.0, variant=1),
    _Entry("lite2", lambda o: lite_bundle(o, 2), 0.0, 5.0, variant=2),
)
_QUICK = (
    _Entry("resnet20", lambda o: adapted_bundle(o, renditions=("fp32", "int8")), 10.0, 0.5, photographs=False),
    _Entry(UNTRAINED, lambda o: lite_bundle(o, 0), 0.0, 1.0, variant=0),
)


def networks(options: BenchOptions) -> Iterator[SureNetwork | Skipped]:
    """Each network, made when it is its turn; bundles are cached between runs."""
    for entry in _QUICK if options.quick else _ALL:
        missing = None if entry.variant is None else missing_weights(options, entry.variant)
        if missing is not None:
            yield Skipped(entry.name, missing)
            continue
        folder = entry.make(options)
        load = photograph_samples if entry.photographs else cifar_samples
        private, report = load(options, folder, "search"), load(options, folder, "report")
        yield SureNetwork(entry.name, folder, private, report, entry.seconds, entry.time_limit_s)


def photograph_samples(options: BenchOptions, folder: Path, part: str) -> Samples:
    """Photographs of a part of imagenette, for the bundle in ``folder``, which has ImageNet's classes."""
    found = load_photographs(options.data_folder, (part,), limit=QUICK_SAMPLES if options.quick else REPORTED)
    return Samples(found.images, found.labels)


def cifar_samples(options: BenchOptions, folder: Path, part: str) -> Samples:
    """Images of a part of CIFAR-10, labelled with the classes of the bundle in ``folder``."""
    names = Bundle.open(folder).manifest.task.class_names
    found = load_dataset(f"{options.data_folder / 'cifar10' / 'test.zip'}#{part}").relabelled(names)
    order = SplitMix64(0).shuffled(range(len(found)))[: QUICK_SAMPLES if options.quick else len(found)]
    return Samples(list(found.images[order]), found.labels[order])
