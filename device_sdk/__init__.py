"""The torch-free device SDK: bundles, the block graph, profiling, search and sessions."""

__version__ = "0.1.0"
