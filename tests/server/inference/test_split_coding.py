"""Packets of a split over a real connection: coded as its plan says."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from device_sdk.offload.remote_model import RemoteModel
from device_sdk.session.adaptive_model import AdaptiveModel
from device_sdk.session.answer import SERVER
from device_sdk.supernet.plan import Plan, RemoteRef, Split
from pathweave.server_process import running_server
from pathweave.throttled_proxy import slow_uplink
from tests.device_sdk.tiny_bundle import SIDE

POSITION = 2
CODINGS = {"plain": {}, "deflated": {"compress": True}, "ranges": {"per_channel": True}}


def test_the_coding_of_a_split_is_that_of_its_packets(tiny_bundle, tmp_path):
    with (
        running_server(tiny_bundle.folder, data=tmp_path / "server") as server,
        AdaptiveModel.open(tiny_bundle.folder, state_folder=tmp_path / "state") as model,
        slow_uplink(server, mbps=1000.0) as (address, link),
    ):
        supernet, name = model.bundle.supernet, f"{model.bundle.manifest.name}:tail"
        model.remote.connect(RemoteModel(server=address, model=name, privacy="activations", timeout_s=20.0))
        tail = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= POSITION)
        split = Split(POSITION, (2,), tail, RemoteRef(name, model.bundle.digest))
        images = np.random.default_rng(0).integers(0, 256, (16, SIDE, SIDE, 3), np.uint8)
        sent, outputs = {}, {}
        for kind, coding in CODINGS.items():
            model.use(Plan(supernet.original, split=replace(split, **coding)))
            model(images)  # asks what the server's model takes
            before = link.uplink_bytes
            answer = model(images)
            assert set(answer.source) == {SERVER}
            sent[kind], outputs[kind] = link.uplink_bytes - before, answer.output
    assert sent["deflated"] < sent["plain"] < sent["ranges"]
    np.testing.assert_array_equal(outputs["deflated"], outputs["plain"])
