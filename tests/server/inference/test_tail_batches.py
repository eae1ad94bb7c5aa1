"""Tails of one path run together at the server, and each sample's answer is the one that it gets alone."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from device_sdk.offload.packing import Activations
from device_sdk.offload.remote_model import RemoteModel
from device_sdk.offload.tail import TailClient
from device_sdk.policies.measured_splits.packet_coding import as_received
from device_sdk.runtimes import OnnxRuntime
from tests.device_sdk.tiny_bundle import CLASSES

COUNTS = {2: 4, 3: 3}  # requests by position of the split


def test_tails_of_one_path_share_a_batch_and_keep_their_own_answers(serve, tiny, tiny_bundle, gated):
    server = serve(tiny.folder, runtime=gated)
    supernet, random = tiny_bundle.supernet, np.random.default_rng(0)
    sent, right = [], []
    for position in (3, *(place for place, count in COUNTS.items() for _ in range(count))):
        tail = tuple(edge for edge, block in supernet.walk(supernet.original) if block.start >= position)
        tensor = random.random((1, *supernet.cut_points[position].tensors[0].shape), dtype=np.float32)
        sent.append(Activations(tiny_bundle.digest, position, tail, (tensor,)))
        right.append(OnnxRuntime(threads=1).load(tiny_bundle.stretch(tail)).run([as_received(tensor, 8)])[0])

    def ask(activations):
        remote = RemoteModel(server=server.url, model="tiny:tail", privacy="activations", timeout_s=20.0)
        return TailClient(remote, bundle=tiny_bundle.digest, output_shape=(len(CLASSES),)).run(activations)

    with ThreadPoolExecutor(len(sent)) as pool:
        first = pool.submit(ask, sent[0])
        assert gated.started.acquire(timeout=60)  # the others wait behind it
        others = [pool.submit(ask, one) for one in sent[1:]]
        for _ in range(500):
            if server.ask("/health").json()["queue_length"] == len(sent):
                break
            time.sleep(0.01)
        time.sleep(0.2)  # those admitted are decoded and queued
        gated.gate.set()
        replies = [future.result(20) for future in (first, *others)]
    assert [reply.failure for reply in replies] == [None] * len(sent)
    for reply, expected in zip(replies, right, strict=True):
        np.testing.assert_allclose(reply.output, expected, atol=1e-4)
    assert sorted(gated.batches) == [1, *sorted(COUNTS.values())]
