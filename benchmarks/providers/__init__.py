"""Execution providers besides the processor: what they take, and how accurate they answer."""
