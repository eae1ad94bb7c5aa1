"""Homes: where a rendition may run on a device. A home is a provider of the runtime with a number of threads."""

from __future__ import annotations

import re

import msgspec

from device_sdk.errors import UsageError

PROVIDERS = {
    "cpu": "CPUExecutionProvider",
    "xnnpack": "XnnpackExecutionProvider",
    "cuda": "CUDAExecutionProvider",
    "tensorrt": "TensorrtExecutionProvider",
    "openvino": "OpenVINOExecutionProvider",
    "qnn": "QNNExecutionProvider",
    "nnapi": "NnapiExecutionProvider",
    "coreml": "CoreMLExecutionProvider",
}
"""Short names of providers, as plans have them, with those of ONNX Runtime."""

CPU = "cpu"
MOST_THREADS = 256
_TEXT = re.compile(r"([a-z0-9]{1,24})-([1-9][0-9]{0,2})t(?:-([a-z]{1,16}))?")


class Home(msgspec.Struct, frozen=True, order=True):
    """One home: a short name of ``PROVIDERS``, a number of threads, and a cluster of cores.

    ``cluster``: a name of the machine's (``machine.clusters``), such as ``big``; empty for any core.
    """

    provider: str = CPU
    threads: int = 1
    cluster: str = ""

    def __str__(self) -> str:
        text = f"{self.provider}-{self.threads}t"
        return f"{text}-{self.cluster}" if self.cluster else text

    @classmethod
    def parse(cls, text: str) -> Home:
        """The home that ``str`` writes as ``text``, such as ``cpu-2t`` or ``cpu-4t-big``.

        Raises:
            UsageError: it is none, or its provider has no short name.
        """
        match = _TEXT.fullmatch(text)
        if match is None or match[1] not in PROVIDERS or int(match[2]) > MOST_THREADS:
            hint = f"write PROVIDER-THREADSt, such as cpu-2t; providers: {', '.join(PROVIDERS)}"
            raise UsageError(f"{text[:64]!r} is no home", hint=hint)
        return cls(match[1], int(match[2]), match[3] or "")

    @property
    def on_processor(self) -> bool:
        """True if it is a set of threads of the processor, without a provider of its own."""
        return self.provider == CPU
