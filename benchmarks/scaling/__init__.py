"""A day of ten thousand devices, against what docs/scaling.md predicts."""
