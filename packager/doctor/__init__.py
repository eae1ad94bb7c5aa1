"""Examination of a model's capabilities before any training."""
