"""Training batches: prepared, augmented, and a pure function of seed and step, so a resumed run repeats them.

With ``variants`` the data set has that many augmented editions, which repeat in turn with the same batches. Results
per batch, such as the teacher's logits, can then be cached by the batch's ``key``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from device_sdk.data.datasets import ImageDataset
from device_sdk.data.preprocessing import AnyPreprocessing, Preprocessing
from device_sdk.data.targets import TargetDataset
from packager.data.image_set import BatchDecoder, Decoded, ImageSet, worker_count
from packager.data.prepared_set import PreparedSet
from packager.tasks import Classification, LearningTask

OPERATIONS = (
    "rotate",
    "shear rows",
    "shear columns",
    "move down",
    "move right",
    "brightness",
    "contrast",
    "saturation",
    "erase",
)
_MOST = (0.52, 0.3, 0.3, 0.45, 0.45, 0.9, 0.9, 0.9, 0.6)  # at strength 1: radians, shares of the image, factors
_OF_EACH = 2  # operations
_GREY = (0.299, 0.587, 0.114)  # of red, green and blue (ITU-R BT.601)


@dataclass(frozen=True)
class Share:
    """The part of a batch for process ``rank`` of ``count``: every ``count``-th sample, starting at ``rank``."""

    rank: int
    count: int

    def of(self, batch: int) -> int:
        """The number of samples out of ``batch``."""
        return len(range(self.rank, batch, self.count))


WHOLE = Share(0, 1)


class BatchSource:
    """Endless shuffled batches of a data set, stored as bytes or decoded ahead, and preprocessed on demand.

    ``share``: the part of each batch that is prepared; its samples equal those of the whole batch. ``labeller``: maps
    prepared images to labels [batch], for a data set without labels. ``distortion``: strength of ``distorted``, which
    keeps only labels of whole images true; each process distorts its share in its own way. A ``PreparedSet`` is not
    augmented.
    """

    def __init__(
        self,
        dataset: ImageDataset | TargetDataset | ImageSet | PreparedSet,
        preprocessing: AnyPreprocessing,
        *,
        batch: int,
        seed: int,
        flip: bool = False,
        crop: float = 0.0,
        variants: int = 0,
        distortion: float = 0.0,
        share: Share = WHOLE,
        task: LearningTask | None = None,
        labeller: Callable[[torch.Tensor], torch.Tensor] | None = None,
    ) -> None:
        self._labels = torch.from_numpy(dataset.labels)
        self._preprocessing = preprocessing
        self._batch = min(batch, len(self._labels))
        self._seed = seed
        self._flip = flip
        self._variants = variants
        self._distortion = distortion
        self._task = task or Classification()
        self._labeller = labeller
        self.share = share
        self._mine = slice(share.rank, None, share.count)
        self._epoch = self._edition = -1
        self._order = torch.empty(0, dtype=torch.long)  # of the samples in an edition
        self._turn = torch.empty(0, dtype=torch.long)  # of the edition's batches in an epoch
        self._pixels: _Stored | _Streamed | _Ready
        if isinstance(dataset, PreparedSet):
            self._pixels, self._shift, self._flip, self._distortion = _Ready(dataset, self._positions), 0, False, 0.0
        elif isinstance(dataset, ImageSet):
            workers = worker_count(processes=share.count)
            self._pixels = _Streamed(BatchDecoder(dataset, self._positions, fill=True, workers=workers), dataset)
            self._shift = round(crop * min(dataset.size))
        else:
            self._pixels = _Stored(dataset, self._positions)
            self._shift = round(crop * min(dataset.images.shape[1:3]))

    def __len__(self) -> int:
        return len(self._labels)

    @property
    def batches_per_epoch(self) -> int:
        """Whole batches that the data set has."""
        return len(self._labels) // self._batch

    @property
    def batch_size(self) -> int:
        """Samples in a whole batch."""
        return self._batch

    @property
    def distinct_batches(self) -> int:
        """Number of batches before they repeat; 0 if they never do."""
        return self._variants * self.batches_per_epoch

    def key(self, step: int) -> tuple[int, int]:
        """Edition of the data set and number of the batch in it: steps with equal keys have the same batch.

        Without ``variants`` every epoch is an edition of its own.
        """
        epoch, position = divmod(step, self.batches_per_epoch)
        if not self._variants:
            return epoch, position
        if epoch != self._epoch:
            self._turn = torch.randperm(self.batches_per_epoch, generator=_generator(self._seed, 3, epoch))
            self._epoch = epoch
        return epoch % self._variants, int(self._turn[position])

    def batch(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of ``step``: prepared samples [batch, *input], labels [batch, …].

        Contains only this process's ``share``. Memory of images is channels-last, with which convolutions run 1.5 times
        as fast.
        """
        images, positions = self._pixels.batch(step)
        edition, number = self.key(step)
        generator = _generator(self._seed, 2, edition * self.batches_per_epoch + number)
        images, labels = self._augment(images, self._labels[positions], generator, batch=self._batch)
        layout = torch.channels_last if images.dim() == 4 else torch.contiguous_format
        return self._labelled(self._prepare(images).contiguous(memory_format=layout), labels)

    def plain(self, start: int, count: int) -> tuple[torch.Tensor, torch.Tensor]:
        """``count`` samples starting at ``start``, in stored order and not augmented."""
        images, positions = self._pixels.at(np.arange(start, min(start + count, len(self._labels))))
        return self._labelled(self._prepare(images), self._labels[positions])

    def _positions(self, step: int) -> npt.NDArray[np.int64]:
        """Positions in the data set of this ``share`` of the batch of ``step``."""
        edition, number = self.key(step)
        if edition != self._edition:
            self._order = torch.randperm(len(self._labels), generator=_generator(self._seed, 1, edition))
            self._edition = edition
        return self._order[number * self._batch : (number + 1) * self._batch][self._mine].numpy()

    def _labelled(self, prepared: torch.Tensor, labels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return prepared, labels if self._labeller is None else self._labeller(prepared)

    def _augment(
        self, images: torch.Tensor, labels: torch.Tensor, generator: torch.Generator, *, batch: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Random numbers are drawn for the whole batch, then cut to the share that ``images`` are."""
        if self._shift:
            count, _, height, width = images.shape
            padded = torch.nn.functional.pad(images, [self._shift] * 4)
            # [count, 2]: the corner of the window that is kept
            corner = torch.randint(0, 2 * self._shift + 1, (batch, 2), generator=generator)[self._mine]
            rows = (corner[:, :1] + torch.arange(height))[:, None, :, None]
            columns = (corner[:, 1:] + torch.arange(width))[:, None, None, :]
            channels = torch.arange(images.shape[1])[None, :, None, None]
            images = padded[torch.arange(count)[:, None, None, None], channels, rows, columns]
            up, left = (corner - self._shift).unbind(1)
            labels = self._task.shifted(labels, up, left, size=(height, width))
        if self._flip:
            mirrored = torch.rand(batch, generator=generator)[self._mine] < 0.5
            images = torch.where(mirrored[:, None, None, None], images.flip(3), images)
            chosen = mirrored.view(-1, *[1] * (labels.dim() - 1))
            labels = torch.where(chosen, self._task.mirrored(labels), labels)
        if self._distortion:
            images = distorted(images, self._distortion, generator)
        return images, labels

    def _prepare(self, images: torch.Tensor) -> torch.Tensor:
        if not isinstance(self._preprocessing, Preprocessing):
            return images
        mean = torch.tensor(self._preprocessing.mean).view(1, -1, 1, 1)
        std = torch.tensor(self._preprocessing.std).view(1, -1, 1, 1)
        return (images.float() * self._preprocessing.scale - mean) / std


class _Stored:
    """Pixels in memory."""

    def __init__(
        self, dataset: ImageDataset | TargetDataset, positions_of: Callable[[int], npt.NDArray[np.int64]]
    ) -> None:
        # [count, channels, height, width] uint8
        self._images = torch.from_numpy(np.ascontiguousarray(dataset.images.transpose(0, 3, 1, 2)))
        self._positions_of = positions_of

    def batch(self, step: int) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """The images of a step, uint8 [n, channels, height, width], and their positions in the data set."""
        return self.at(self._positions_of(step))

    def at(self, positions: npt.NDArray[np.int64]) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """The images at ``positions``, and the positions."""
        return self._images[torch.from_numpy(positions)], positions


class _Ready:
    """Prepared samples in memory."""

    def __init__(self, dataset: PreparedSet, positions_of: Callable[[int], npt.NDArray[np.int64]]) -> None:
        self._inputs = torch.from_numpy(dataset.inputs)
        self._positions_of = positions_of

    def batch(self, step: int) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """The samples of a step, [n, *input], and their positions in the data set."""
        return self.at(self._positions_of(step))

    def at(self, positions: npt.NDArray[np.int64]) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """The samples at ``positions``, and the positions."""
        return self._inputs[torch.from_numpy(positions)], positions


@dataclass(frozen=True)
class _Streamed:
    """Pixels in files. A corrupt file is replaced by the next readable one and its label."""

    decoder: BatchDecoder
    dataset: ImageSet

    def batch(self, step: int) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """As of stored pixels."""
        return _channels_first(self.decoder.batch(step))

    def at(self, positions: npt.NDArray[np.int64]) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
        """As of stored pixels."""
        decoded = self.dataset.read(positions, fill=True)
        self.dataset.note(decoded.corrupt)
        return _channels_first(decoded)


def _channels_first(decoded: Decoded) -> tuple[torch.Tensor, npt.NDArray[np.int64]]:
    return torch.from_numpy(decoded.pixels).permute(0, 3, 1, 2), decoded.positions


def _generator(seed: int, stream: int, number: int) -> torch.Generator:
    mixed = (seed * 1_000_003 + stream) * 1_000_000_007 + number
    return torch.Generator().manual_seed(mixed % 2**63)  # any seed fits


def distorted(images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
    """Images [batch, channels, height, width] of 0 to 255, each changed by two random operations, as float32.

    Source: RandAugment (Cubuk et al. 2020), on a whole batch at once and without the operations on histograms.

    ``strength``: from 0, which changes nothing, to 1. The operations need labels of whole images.
    """
    found = images.float()
    if not strength:
        return found
    chosen = torch.rand(len(images), len(OPERATIONS), generator=generator).argsort(1) < _OF_EACH
    signs = torch.rand(len(images), len(OPERATIONS), generator=generator) * 2 - 1
    corner = torch.rand(len(images), 2, generator=generator)
    # [operations, batch]: how much of each, 0 where it is not chosen
    amount = (chosen * signs * strength * torch.tensor(_MOST)).T
    found = _moved(found, *amount[:5])
    brightness, contrast, saturation = (1 + one.view(-1, 1, 1, 1) for one in amount[5:8])
    found = found * brightness
    means = _grey(found).mean((1, 2, 3), keepdim=True)
    found = means + (found - means) * contrast
    if images.shape[1] == 3:
        grey = _grey(found)
        found = grey + (found - grey) * saturation
    return _erased(found.clamp(0.0, 255.0), amount[8].abs(), corner)


def _moved(
    images: Tensor, angle: Tensor, shear_rows: Tensor, shear_columns: Tensor, down: Tensor, right: Tensor
) -> Tensor:
    """One affine map of each image, bilinear; what comes from outside is mirrored at the border."""
    cosine, sine = angle.cos(), angle.sin()
    first = torch.stack((cosine + sine * shear_columns, sine + cosine * shear_rows, 2 * right), 1)
    second = torch.stack((-sine + cosine * shear_columns, cosine - sine * shear_rows, 2 * down), 1)
    grid = functional.affine_grid(torch.stack((first, second), 1), list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, padding_mode="reflection", align_corners=False)


def _grey(images: Tensor) -> Tensor:
    if images.shape[1] != len(_GREY):
        return images.mean(1, keepdim=True)
    return (images * torch.tensor(_GREY).view(1, -1, 1, 1)).sum(1, keepdim=True)


def _erased(images: Tensor, side: Tensor, corner: Tensor) -> Tensor:
    """A square of ``side`` [batch], a share of the image's, is made medium grey."""
    height, width = images.shape[2:]
    rows = (torch.arange(height) / height)[None]
    columns = (torch.arange(width) / width)[None]
    top, left = (corner * (1 - side[:, None])).unbind(1)
    in_rows = (rows >= top[:, None]) & (rows < (top + side)[:, None])
    in_columns = (columns >= left[:, None]) & (columns < (left + side)[:, None])
    return torch.where((in_rows[:, :, None] & in_columns[:, None, :])[:, None], 127.5, images)
