"""Cores and memory that this process may use: the machine's, less what affinity and control groups withhold."""

from device_sdk.machine.cores import usable_cores
from device_sdk.machine.memory import mapped_bytes, memory_bytes, peak_resident_bytes, resident_bytes

__all__ = ["mapped_bytes", "memory_bytes", "peak_resident_bytes", "resident_bytes", "usable_cores"]
