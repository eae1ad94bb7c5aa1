"""LitServe with one ONNX model: ``python -m benchmarks.serving.litserve_peer MODEL PORT THREADS MAX_BATCH SHAPE…``."""

import sys
from typing import Any

import litserve
import numpy as np
import onnxruntime
from fastapi import Request  # comes with litserve, which reads the annotation as it is


class _Model(litserve.LitAPI):
    """The file in ONNX Runtime. Requests are forms with one file: the tensor's bytes, as replies are."""

    def __init__(self, path: str, threads: int, shape: tuple[int, ...], **options: Any) -> None:
        super().__init__(**options)
        self._path, self._threads, self._shape = path, threads, shape

    def setup(self, device: str) -> None:
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = self._threads, 1
        self._session = onnxruntime.InferenceSession(self._path, settings, providers=["CPUExecutionProvider"])
        self._input = self._session.get_inputs()[0].name

    def decode_request(self, request: Request) -> np.ndarray:
        return np.frombuffer(request["tensor"].file.read(), np.float32).reshape(self._shape)

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, x: np.ndarray) -> Any:
        batched = x if x.ndim > len(self._shape) else x[None]
        return self._session.run(None, {self._input: batched})[0]

    def unbatch(self, output: np.ndarray) -> Any:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, Any]:
        return {"logits": np.ravel(output).tolist()}


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    path, port, threads, max_batch, *shape = arguments
    api = _Model(path, int(threads), tuple(map(int, shape)), max_batch_size=int(max_batch), batch_timeout=0.0)
    litserve.LitServer(api, accelerator="cpu", timeout=60).run(
        host="127.0.0.1", port=int(port), log_level="error", generate_client_file=False
    )


if __name__ == "__main__":
    main(sys.argv[1:])
