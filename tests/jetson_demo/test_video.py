from __future__ import annotations

import numpy as np
import pytest

from jetson_demo.video import CSI, VideoFrames, camera_source, video_file
from pathweave.errors import DataError

cv2 = pytest.importorskip("cv2", reason="needs the extra: pip install 'pathweave[camera]'")
FRAMES = 12
COLOURS = ((255, 0, 0), (0, 255, 0), (0, 0, 255))  # red, green, blue


@pytest.fixture(scope="module")
def film(tmp_path_factory):
    """A video of 12 frames of 64×48 pixels: four red ones, four green ones, four blue ones."""
    path = tmp_path_factory.mktemp("film") / "colours.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 25, (64, 48))
    for number in range(FRAMES):
        rgb = np.full((48, 64, 3), COLOURS[number * 3 // FRAMES], np.uint8)
        writer.write(rgb[..., ::-1].copy())
    writer.release()
    return path


@pytest.fixture
def video(model, film):
    with_frames = VideoFrames(model, video_file(film), name="film", live=False)
    yield with_frames
    with_frames.close()


def test_a_film_is_read_to_its_end_in_the_models_size(video):
    frames = list(video.frames(loop=False, note=print))
    assert video.count == len(frames) == FRAMES
    assert frames[0].name == "film #0"
    assert frames[0].tensor.shape == (1, 3, 20, 20)


def test_a_sample_is_spread_over_the_film_and_keeps_the_order_of_colours(video):
    sample = video.sample(3, note=print)
    assert sample.shape == (3, 20, 20, 3)
    assert sample.mean(axis=(1, 2)).argmax(axis=1).tolist() == [0, 1, 2]


def test_reading_starts_at_the_first_frame_again_after_a_sample(video):
    video.sample(2, note=print)
    assert len(list(video.frames(loop=False, note=print))) == FRAMES


def test_a_film_starts_again_where_it_shall_loop(video):
    frames = video.frames(loop=True, note=print)
    names = [next(frames).name for _ in range(2 * FRAMES + 1)]
    assert names[-1] == f"film #{2 * FRAMES}"


def test_a_camera_that_stops_ends_the_run_with_a_note(model, film):
    notes = []
    live = VideoFrames(model, f"{film}", name="camera 0", live=True)  # a file stands in: it stops at its end
    assert 0 < len(list(live.frames(loop=True, note=notes.append))) < FRAMES  # the first were for its exposure
    assert notes == ["camera 0 delivers no more frames"]
    live.close()


def test_a_camera_that_is_not_there_says_what_to_look_at(model):
    with pytest.raises(DataError, match="camera 93 does not open") as caught:
        VideoFrames(model, camera_source("93"), name="camera 93", live=True)
    assert "group video" in caught.value.hint


def test_what_is_no_video_is_refused(model, tmp_path):
    (tmp_path / "a.avi").write_bytes(b"no video")
    with pytest.raises(DataError, match="not a readable video"):
        VideoFrames(model, video_file(tmp_path / "a.avi"), name="a.avi", live=False)
    with pytest.raises(DataError, match="there is no file"):
        video_file(tmp_path / "b.avi")


@pytest.mark.parametrize(
    ("named", "opened"), [("0", 0), ("/dev/video2", 2), ("csi", CSI), ("v4l2src ! appsink", "v4l2src ! appsink")]
)
def test_cameras_are_numbers_devices_or_pipelines(named, opened):
    assert camera_source(named) == opened
