"""Time and memory of a run: limits, estimates per step, and the time left for training."""
