"""The whole bench on a tiny segmenter, with a real server process and a shaped link."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.runner.run import BenchOptions
from benchmarks.split.bench import QUICK_FACTORS, QUICK_UPLINKS_MBPS, _fastest, _network_rows
from benchmarks.split.networks import Judged, SplitNetwork
from benchmarks.split.ways import OURS
from device_sdk.progress import SilentProgress
from device_sdk.signing.signatures import new_key_pair
from tests.device_sdk.tiny_bundle import SIDE, draw_images
from tests.device_sdk.tiny_segmenter import write_tiny_segmenter

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def rows(tmp_path_factory):
    pytest.importorskip("torchmetrics", reason="needs the extra: pip install 'pathweave[dev]'")
    folder = tmp_path_factory.mktemp("segmenter")
    (folder / "key").write_bytes(new_key_pair()[0])
    write_tiny_segmenter(folder / "segmenter", folder / "key")
    images, labels = draw_images(6, seed=2)
    targets = np.broadcast_to(labels[:, None, None].astype(np.uint8), (6, SIDE, SIDE)).copy()
    judged = Judged(list(images), targets)
    network = SplitNetwork("segmenter", folder / "segmenter", "mIoU", judged, judged, renditions=("fp32",))
    options = BenchOptions(True, folder, folder / "work", SilentProgress())
    return _network_rows(network, options)


def test_every_cell_has_every_method_that_float32_allows_and_a_fastest_way(rows):
    cells = [row for row in rows if row["what"] == "cell"]
    assert {(row["uplink_mbps"], row["device_factor"]) for row in cells} == {
        (mbps, factor) for mbps in QUICK_UPLINKS_MBPS for factor in QUICK_FACTORS
    }
    assert len(list(_fastest(rows))) == len(QUICK_UPLINKS_MBPS) * len(QUICK_FACTORS)
    methods = [row["method"] for row in cells[: cells.index(next(row for row in cells if row["method"] == OURS)) + 1]]
    assert methods[:3] == ["server only, raw", "server only, JPEG", "device only"]
    assert not any(method.startswith("uniform") for method in methods)
    assert all(0 <= row["mIoU"] <= 100 for row in cells)


def test_a_segmenter_answers_alike_whole_and_split(rows):
    [agreement] = [row for row in rows if row["what"] == "agreement"]
    assert agreement["agreement"] >= 0.97
    assert agreement["bytes_error"] == 0
    positions = [row for row in rows if row["what"] == "position"]
    assert positions
    for row in positions:
        assert 0 < row["predicted_bytes"] <= row["bytes_on_the_line"] < row["predicted_bytes"] + 500
