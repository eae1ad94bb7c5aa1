"""ONNX Runtime behind the runtime port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from device_sdk.bundles.composition import Stretch, compose
from device_sdk.errors import RuntimeFailedError
from device_sdk.runtimes.port import Array

_ERRORS_ONLY = 3


class OnnxRuntime:
    """Runs composed ONNX models with one provider and a fixed number of threads.

    Raises:
        RuntimeFailedError: the provider is not there.
    """

    def __init__(self, *, threads: int = 1, provider: str = "CPUExecutionProvider") -> None:
        import onnxruntime

        if provider not in onnxruntime.get_available_providers():
            raise RuntimeFailedError(
                f"ONNX Runtime has no {provider} here",
                hint="it has " + ", ".join(onnxruntime.get_available_providers()),
            )
        self._onnxruntime = onnxruntime
        self._threads = threads
        self._provider = provider
        onnxruntime.set_default_logger_severity(_ERRORS_ONLY)

    @property
    def identity(self) -> str:
        """For example ``onnxruntime-1.31.1-CPUExecutionProvider-1t``."""
        return f"onnxruntime-{self._onnxruntime.__version__}-{self._provider}-{self._threads}t"

    def load(self, stretch: Stretch) -> OnnxSession:
        """Compose and create a session (see the port)."""
        return self.load_model(compose(stretch))

    def load_model(self, model: bytes) -> OnnxSession:
        """Create a session of a serialized model: also how a model exported in one piece is compared with."""
        options = self._onnxruntime.SessionOptions()
        options.intra_op_num_threads = self._threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _ERRORS_ONLY
        options.add_session_config_entry("session.intra_op.allow_spinning", "0" if self._threads == 1 else "1")
        try:
            session = self._onnxruntime.InferenceSession(model, options, providers=[self._provider])
        except Exception as error:  # the binding raises many unrelated types
            raise RuntimeFailedError(f"ONNX Runtime refused the model: {_first_line(error)}") from error
        session._model_bytes = None  # the Python session would keep a second copy of all weights
        if session.get_providers()[0] != self._provider:
            raise RuntimeFailedError(f"ONNX Runtime fell back to {session.get_providers()[0]}")
        return OnnxSession(session)


class OnnxSession:
    """One ONNX Runtime session."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._inputs = [value.name for value in session.get_inputs()]
        self._outputs = [value.name for value in session.get_outputs()]

    def run(self, inputs: Sequence[Array]) -> list[Array]:
        """See the port."""
        session = self._session
        if session is None:
            raise RuntimeFailedError("the session was closed")
        try:
            return session.run(self._outputs, dict(zip(self._inputs, inputs, strict=True)))
        except Exception as error:
            raise RuntimeFailedError(f"ONNX Runtime failed: {_first_line(error)}") from error

    def close(self) -> None:
        """See the port."""
        self._session = None


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
