"""Bench ``promises``: limits that state a probability, kept on new samples."""
