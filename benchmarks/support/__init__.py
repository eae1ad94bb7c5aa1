"""Shared by several benchmarks: bundles, peers, choices."""
