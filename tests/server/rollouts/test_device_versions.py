"""Placement, inference and profiles work with the version that a rollout gives to the device that asks."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest

from device_sdk.delivery.assignment import Assignment
from device_sdk.errors import StorageError
from device_sdk.offload.open_inference import InferRequest, NamedTensor, decode_response, encode_request
from device_sdk.offload.packing import Activations, pack
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.tail import TailClient
from device_sdk.supernet.plan import Edge
from server.rollouts.device_versions import DeviceVersions
from server.state.folder_bundles import FolderBundles
from tests.device_sdk.tiny_bundle import CLASSES

STAGED = {"stages": [{"percent": 0, "devices": ["new"]}, {"percent": 100}]}
NEW = {"Pathweave-Device": "new"}
OLD = {"Pathweave-Device": "old"}


def placed(fleet, **headers):
    reply = fleet.server.post("/v1/placements", {"bundle": "tiny", "memory_bytes": 50_000}, **headers)
    assert reply.status == 200, reply.body
    return reply.json()["version"], reply.json()["digest"]


def model(fleet, path="/v2/models/tiny", **headers):
    reply = fleet.server.ask(path, headers=headers)
    assert reply.status == 200, reply.body
    return reply.json()["versions"], reply.json()["pathweave"]["bundle"]


def test_without_a_rollout_all_get_the_highest_version(fleet):
    for headers in (NEW, OLD, {}):
        assert placed(fleet, **headers) == (2, fleet.digests[2])
        assert model(fleet, **headers) == (["2"], fleet.digests[2])


def test_in_a_rollout_each_device_gets_its_own_version(fleet):
    fleet.start(STAGED)
    for headers, version in ((NEW, 2), (OLD, 1), ({}, 1)):
        assert placed(fleet, **headers) == (version, fleet.digests[version])
        assert model(fleet, **headers) == ([str(version)], fleet.digests[version])
        profile = fleet.server.ask("/v1/bundles/tiny/profile", headers=headers).json()
        assert profile["bundle"] == fleet.digests[version]
    assert fleet.show()["fleet_devices"] == 0  # nothing of this is remembered as a device's question


def test_a_version_by_number_is_that_one(fleet):
    fleet.start(STAGED)
    for version in (1, 2):
        assert model(fleet, f"/v2/models/tiny/versions/{version}") == ([str(version)], fleet.digests[version])
    assert fleet.server.ask("/v2/models/tiny/versions/3").status == 404


def test_a_header_that_names_no_device_is_refused(fleet):
    assert fleet.server.ask("/v2/models/tiny", headers={"Pathweave-Device": "a b"}).status == 400


def test_a_tail_runs_in_the_version_that_its_packet_names(fleet, tiny_bundle):
    fleet.start(STAGED)
    tensor = np.zeros((2, *tiny_bundle.supernet.cut_points[4].tensors[0].shape), np.float32)
    for version in (1, 2):
        packet = pack(Activations(fleet.digests[version], 4, (Edge("o4"),), (tensor,)))
        data = np.frombuffer(packet, np.uint8)[np.newaxis]
        body, headers = encode_request(InferRequest((NamedTensor("activations", data),)))
        reply = fleet.server.ask("/v2/models/tiny%3Atail/infer", method="POST", body=body, headers=headers)
        assert reply.status == 200, reply.body
        assert decode_response(reply.body, header_length=None).model_version == str(version)


class Assigned:
    """Assignments that count the questions, and may be away."""

    def __init__(self, version):
        self.version, self.asked, self.away = version, 0, False

    def _answer(self):
        self.asked += 1
        if self.away:
            raise StorageError("the database is away")
        return self.version

    def without_asking(self, bundle, served):
        return self._answer()

    def assign(self, bundle, device, tags, *, records):
        assert not records
        return Assignment(self._answer())


@pytest.fixture
def bundles(folder):
    return FolderBundles(folder)


def test_the_database_is_asked_once_a_second(bundles):
    assigned, now = Assigned(1), [0.0]
    versions = DeviceVersions(assigned, bundles, clock=lambda: now[0])
    for _ in range(5):
        assert versions.find("tiny", "a").version == 1
        assert versions.find("tiny", None).version == 1
    assert assigned.asked == 2
    now[0], assigned.version = 1.0, 2
    assert versions.find("tiny", "a").version == 2


def test_while_the_database_is_away_what_is_known_stands(bundles):
    assigned, now = Assigned(1), [0.0]
    versions = DeviceVersions(assigned, bundles, clock=lambda: now[0])
    versions.find("tiny", "a")
    now[0], assigned.away = 60.0, True
    assert versions.find("tiny", "a").version == 1
    assert versions.find("tiny", "never seen").version == 2


def test_a_client_of_tails_has_its_own_version_served_during_a_rollout(fleet, tiny_bundle):
    fleet.start(STAGED)
    tensor = np.zeros((1, *tiny_bundle.supernet.cut_points[4].tensors[0].shape), np.float32)
    remote = RemoteModel(server=fleet.server.url, model="tiny:tail", privacy="activations", timeout_s=20.0)
    for version in (1, 2):
        digest = fleet.digests[version]
        client = TailClient(remote, bundle=digest, output_shape=(len(CLASSES),), version=version)
        with contextlib.closing(client):
            reply = client.run(Activations(digest, 4, (Edge("o4"),), (tensor,)))
        assert reply.output is not None, reply.failure


def test_a_packet_without_a_shape_is_refused(fleet):
    body, headers = encode_request(InferRequest((NamedTensor("activations", np.array(1, np.uint8)),)))
    assert fleet.server.ask("/v2/models/tiny%3Atail/infer", method="POST", body=body, headers=headers).status == 400
