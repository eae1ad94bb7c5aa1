"""The torch-free device SDK: bundles, the block graph, profiling, search and sessions."""

import os
import sys

from device_sdk.runtime_telemetry import disable_runtime_telemetry

__version__ = "0.1.0"

disable_runtime_telemetry(os.environ, imported=sys.modules)
