"""The port to whatever delivers frames: a folder of images, a video file, a camera."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

Note = Callable[[str], None]


@dataclass(frozen=True, eq=False)
class Frame:
    """One prepared image: ``tensor`` float32 [1, channels, height, width]; ``name`` says where it came from."""

    name: str
    tensor: npt.NDArray[np.float32]


class FrameSource(Protocol):
    """Delivers frames for one model. ``note`` is called once for what cannot be used, with the reason."""

    @property
    def count(self) -> int | None:
        """Number of frames; None if unknown or endless."""
        ...

    @property
    def skipped(self) -> Mapping[Path, str]:
        """Files that cannot be used, with the reasons."""
        ...

    def sample(self, count: int, *, note: Note) -> npt.NDArray[np.uint8]:
        """At most ``count`` images to adapt on, uint8 [count, height, width, channels] in the model's input size.

        Raises:
            DataError: none can be used.
        """
        ...

    def frames(self, *, loop: bool, note: Note) -> Iterator[Frame]:
        """Frames one by one, read lazily; with ``loop`` from the start again after the last.

        Raises:
            DataError: none can be used.
        """
        ...

    def close(self) -> None:
        """Release what is held open. May be called twice."""
        ...
