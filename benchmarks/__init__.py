"""The benchmarks: one module per published table or figure."""

import device_sdk as device_sdk  # before any import of onnxruntime: it switches the runtime's telemetry off
