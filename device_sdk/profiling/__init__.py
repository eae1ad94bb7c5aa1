"""Measuring what blocks and subnets cost on this device."""
