"""Providers of ONNX Runtime: where each comes from, its options, its stand-ins, and its version."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from device_sdk.errors import RuntimeFailedError
from device_sdk.supernet.home import CPU, PROVIDERS

Options = dict[str, str]


@dataclass(frozen=True)
class ProviderSettings:
    """The settings of one session: ``threads``, and ``cache_folder`` for what the provider compiles on this device.

    ``given``: options of the application's own, which go before those of ``Provider.options``.
    """

    threads: int
    cache_folder: Path | None = None
    given: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Provider:
    """A provider as this SDK sees it.

    ``plugin``: the Python package that brings it, where ONNX Runtime was not built with it; ``extra`` installs it.
    ``one_sample``: its sessions take one sample at a time, since it compiles for fixed shapes. ``stand_ins``: providers
    for the operators that it lacks, besides the processor. ``keeps_context``: what it compiled is kept as a model of
    its own, and loaded instead the next time. ``relative_tolerance`` of its answers, over the largest magnitude among
    the golden ones of a block. ``options`` of a session of a model.
    """

    name: str
    options: Callable[[bytes, ProviderSettings], Options]
    plugin: str | None = None
    extra: str | None = None
    one_sample: bool = False
    stand_ins: tuple[str, ...] = ()
    keeps_context: bool = False
    relative_tolerance: float = 1e-2


def _none(model: bytes, settings: ProviderSettings) -> Options:
    return {}


def _xnnpack(model: bytes, settings: ProviderSettings) -> Options:
    return {"intra_op_num_threads": str(settings.threads)}


def _tensorrt(model: bytes, settings: ProviderSettings) -> Options:
    """Engines are named after the model's file, inputs and outputs, not its weights: its digest keeps them apart."""
    folder = settings.cache_folder
    if folder is None:
        return {}
    folder.mkdir(parents=True, exist_ok=True)
    return {
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": str(folder),
        "trt_engine_cache_prefix": hashlib.sha256(model).hexdigest(),
        "trt_timing_cache_enable": "True",
        "trt_timing_cache_path": str(folder),
    }


def _openvino(model: bytes, settings: ProviderSettings) -> Options:
    """Single precision, so that answers are those of the processor; OpenVINO would take half of it where it is fast."""
    processor = {"INFERENCE_NUM_THREADS": settings.threads, "INFERENCE_PRECISION_HINT": "f32"}
    return {"load_config": json.dumps({"CPU": processor})}


def _qnn(model: bytes, settings: ProviderSettings) -> Options:
    """The NPU (HTP). Half precision, for what is not quantised, needs ``soc_model``, which the application states."""
    precise = {"enable_htp_fp16_precision": "1"} if "soc_model" in (settings.given or {}) else {}
    return {"backend_path": _qnn_backend(), **precise}


def _qnn_backend() -> str:
    return str(importlib.import_module("onnxruntime_qnn").get_qnn_htp_path())


KNOWN: dict[str, Provider] = {
    CPU: Provider(PROVIDERS[CPU], _none),
    "xnnpack": Provider(PROVIDERS["xnnpack"], _xnnpack),
    "cuda": Provider(PROVIDERS["cuda"], _none),
    "tensorrt": Provider(PROVIDERS["tensorrt"], _tensorrt, stand_ins=(PROVIDERS["cuda"],)),
    "openvino": Provider(
        PROVIDERS["openvino"], _openvino, plugin="onnxruntime_ep_openvino", extra="openvino", one_sample=True
    ),
    "qnn": Provider(
        PROVIDERS["qnn"],
        _qnn,
        plugin="onnxruntime_qnn",
        extra="qnn",
        one_sample=True,
        keeps_context=True,
        relative_tolerance=3e-2,
    ),
    "nnapi": Provider(PROVIDERS["nnapi"], _none, one_sample=True),
    "coreml": Provider(PROVIDERS["coreml"], _none),
}


def provider_named(name: str) -> tuple[str, Provider]:
    """A provider with its short name, by either name; one that is not ``KNOWN`` has no options and its own name."""
    for short, provider in KNOWN.items():
        if name in (short, provider.name):
            return short, provider
    return name, Provider(name, _none)


_registering = threading.Lock()
_registered: set[str] = set()


def installed_providers() -> tuple[str, ...]:
    """Short names of the providers that ONNX Runtime was built with or whose plug-in is installed; none is loaded."""
    return tuple(short for short in KNOWN if is_built_in(short) or installed_version(short))


def installed_version(name: str) -> str:
    """The version of the plug-in that is installed; empty without one. It is not loaded."""
    _, provider = provider_named(name)
    if provider.plugin is None:
        return ""
    try:
        return importlib.metadata.version(provider.plugin.replace("_", "-"))
    except importlib.metadata.PackageNotFoundError:
        return ""


def is_built_in(name: str) -> bool:
    """True if ONNX Runtime was built with this provider."""
    import onnxruntime

    short, provider = provider_named(name)
    return short not in _registered and provider.name in onnxruntime.get_available_providers()


def require_installed(name: str) -> None:
    """Raise RuntimeFailedError unless the provider is ``installed``; says how to install it, or what is here."""
    if not is_built_in(name) and not installed_version(name):
        raise _missing(name)


def _missing(name: str) -> RuntimeFailedError:
    _, provider = provider_named(name)
    if installed_version(name):
        hint = "plug-ins take devices of some makers alone: see what theirs says"
        return RuntimeFailedError(f"{provider.plugin} is installed and finds no device here", hint=hint)
    hint = "it has " + ", ".join(KNOWN[one].name for one in installed_providers())
    if provider.extra is not None:
        hint += f"; pip install 'pathweave[{provider.extra}]' brings {provider.name}"
    return RuntimeFailedError(f"ONNX Runtime has no {provider.name} here", hint=hint)


def require_available(name: str) -> None:
    """Raise RuntimeFailedError unless the provider is here, its plug-in loaded; says how to install it."""
    if not is_built_in(name) and not plugin_devices(name):
        raise _missing(name)


def plugin_devices(name: str) -> list[Any]:
    """The devices that a plug-in offers, registered once per process; none where there is no plug-in.

    Raises:
        RuntimeFailedError: the plug-in is installed, and ONNX Runtime refuses it.
    """
    import onnxruntime

    short, provider = provider_named(name)
    if provider.plugin is None or not hasattr(onnxruntime, "register_execution_provider_library"):
        return []
    try:
        plugin = importlib.import_module(provider.plugin)
    except ImportError:
        return []
    with _registering:
        if short not in _registered:
            try:
                onnxruntime.register_execution_provider_library(provider.name, plugin.get_library_path())
            except Exception as error:  # the binding raises many unrelated types
                line = (str(error).splitlines() or [type(error).__name__])[0][:300]
                raise RuntimeFailedError(f"ONNX Runtime refused the plug-in {provider.plugin}: {line}") from error
            _registered.add(short)
    return [one for one in onnxruntime.get_ep_devices() if one.ep_name == provider.name]


def provider_version(name: str) -> str:
    """The version of a provider's plug-in: of its package, else as it states it; empty for what comes built in."""
    if is_built_in(name):
        return ""
    devices = plugin_devices(name)
    stated = str(dict(devices[0].ep_metadata).get("version", "unknown")) if devices else ""
    return installed_version(name) or stated


def provider_chain(provider: Provider, options: Options) -> list[str | tuple[str, Options]]:
    """A provider that ONNX Runtime was built with, its options, and what runs the operators that it lacks."""
    cpu = PROVIDERS[CPU]
    if provider.name == cpu:
        return [cpu]
    first: str | tuple[str, Options] = (provider.name, options) if options else provider.name
    return [first, *provider.stand_ins, cpu]
