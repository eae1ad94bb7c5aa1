"""Frames of a video file or a camera, read with OpenCV (JetPack brings its own; elsewhere: the extra ``camera``)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from device_sdk.data.preprocessing import fit_image
from device_sdk.extras import require
from jetson_demo.frames import Frame, Note
from pathweave import AdaptiveModel
from pathweave.errors import DataError

CSI = (
    "nvarguscamerasrc ! video/x-raw(memory:NVMM),width=1280,height=720,framerate=30/1"
    " ! nvvidconv ! video/x-raw,format=BGRx ! videoconvert ! video/x-raw,format=BGR ! appsink drop=true max-buffers=1"
)  # a Jetson's ribbon-cable camera
_CAMERA_STRIDE = 3  # between the frames of a camera's sample: neighbours are near copies
_WARM_UP_FRAMES = 5  # of a camera, while it sets its exposure


class VideoFrames:
    """A ``FrameSource`` of one opened capture.

    ``name`` is how messages call it; ``live``: a camera, which has no start and no end.
    """

    def __init__(self, model: AdaptiveModel, source: int | str, *, name: str, live: bool) -> None:
        self._model, self._source, self._name, self._live = model, source, name, live
        self._preprocessing = model.bundle.manifest.preprocessing.of_images()
        self._capture = _opened(source, name=name, live=live)
        self._at_start = True
        if live:
            for _ in range(_WARM_UP_FRAMES):
                self._read()

    @property
    def count(self) -> int | None:
        """Frames of a file as its container states them; None for a camera, or where it does not."""
        if self._live:
            return None
        stated = int(self._capture.get(_cv2().CAP_PROP_FRAME_COUNT))
        return stated if stated > 0 else None

    @property
    def skipped(self) -> Mapping[Path, str]:
        """Nothing: a video that cannot be decoded ends."""
        return {}

    def sample(self, count: int, *, note: Note) -> npt.NDArray[np.uint8]:
        """See the port. Spread over a file; of a camera what it sees now, every third frame."""
        wanted = self._sample_stride(count)
        taken: list[npt.NDArray[np.uint8]] = []
        for number, pixels in enumerate(self._images()):
            if number % wanted == 0:
                taken.append(pixels)
            if len(taken) == count:
                break
        if not taken:
            raise DataError(f"no frame of {self._name} could be read")
        return np.stack(taken)

    def frames(self, *, loop: bool, note: Note) -> Iterator[Frame]:
        """See the port. ``loop`` has no meaning for a camera."""
        number = 0
        while True:
            first = number
            for pixels in self._images():
                yield Frame(f"{self._name} #{number}", self._model.prepare(pixels))
                number += 1
            if number == first:
                raise DataError(f"no frame of {self._name} could be read")
            if self._live:
                note(f"{self._name} delivers no more frames")
            if self._live or not loop:
                return

    def close(self) -> None:
        """Release the file or the camera."""
        self._capture.release()

    def _sample_stride(self, count: int) -> int:
        if self._live:
            return _CAMERA_STRIDE
        return max(1, (self.count or 0) // count)

    def _images(self) -> Iterator[npt.NDArray[np.uint8]]:
        """The images from the start of the file, or from now on, in the model's input size."""
        if not self._live and not self._at_start:
            self._capture.release()
            self._capture = _opened(self._source, name=self._name, live=False)
        self._at_start = False
        while (pixels := self._read()) is not None:
            yield fit_image(pixels, self._preprocessing)

    def _read(self) -> npt.NDArray[np.uint8] | None:
        """The next image, uint8 [height, width, channels] in the order of the model; None at the end."""
        cv2 = _cv2()
        try:
            found, image = self._capture.read()
        except cv2.error:
            return None
        if not found or image is None:
            return None
        if self._preprocessing.channels == 1:
            return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2GRAY), np.uint8)[..., None]
        return np.asarray(cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def camera_source(named: str) -> int | str:
    """Source that OpenCV opens for ``camera:NAMED``: a number, ``/dev/videoN``, ``csi``, or a GStreamer pipeline."""
    device = re.fullmatch(r"(?:/dev/video)?(\d+)", named)
    if device is not None:
        return int(device[1])
    return CSI if named == "csi" else named


def video_file(path: Path) -> str:
    """A video file that is there.

    Raises:
        DataError: it is not.
    """
    if not path.is_file():
        raise DataError(f"there is no file {path}", hint="give an existing one: --source video:FILE")
    return str(path)


def _opened(source: int | str, *, name: str, live: bool) -> Any:
    cv2 = _cv2()
    pipeline = isinstance(source, str) and " ! " in source
    try:
        capture = cv2.VideoCapture(source, cv2.CAP_GSTREAMER if pipeline else cv2.CAP_ANY)
    except cv2.error as error:
        raise _refused(name, live=live) from error
    if not capture.isOpened():
        raise _refused(name, live=live)
    return capture


def _refused(name: str, *, live: bool) -> DataError:
    if live:
        hint = "is it plugged in, used by another program, and are you in the group video? ls /dev/video*"
        return DataError(f"{name} does not open", hint=hint)
    return DataError(f"{name} is not a readable video")


def _cv2() -> Any:
    cv2 = require("cv2", extra="camera")
    if hasattr(cv2, "setLogLevel"):
        cv2.setLogLevel(0)  # its warnings would draw over the view
    return cv2
