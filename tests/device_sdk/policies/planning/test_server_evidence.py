from __future__ import annotations

import numpy as np

from device_sdk.data.inputs import PreparedInputs
from device_sdk.data.preprocessing import Preprocessing
from device_sdk.offload.agreement import Agreement, fill
from device_sdk.offload.client import ModelMetadata, TensorMetadata
from device_sdk.policies.planning.server_evidence import _mean_request_bytes

PREPROCESSING = Preprocessing(scale=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.25, 0.25, 0.25))
METADATA = ModelMetadata(
    (TensorMetadata("image", "BYTES", (-1,)),), (TensorMetadata("logits", "FP32", (-1, 3)),), ("1",), None, None, True
)


class Sizes:
    """What an client says of a request's size, without a server."""

    def request_bytes(self, tensors, images):
        return fill(Agreement("jpeg", METADATA), tensors, images, preprocessing=PREPROCESSING).size_bytes


def test_jpegs_are_planned_with_their_mean_size():
    flat = np.zeros((1, 16, 16, 3), np.uint8)
    noisy = np.random.default_rng(0).integers(0, 256, (1, 16, 16, 3), np.uint8)
    images, tensors = np.concatenate([flat, noisy]), np.zeros((2, 3, 16, 16), np.float32)
    sizes = [Sizes().request_bytes(tensors[:1], one) for one in (flat, noisy)]
    assert sizes[0] < sizes[1]
    assert _mean_request_bytes(Sizes(), PreparedInputs(tensors), list(images)) == round(sum(sizes) / 2)
