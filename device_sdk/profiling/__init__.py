"""Measures latency and memory of blocks and subnets on this device."""
