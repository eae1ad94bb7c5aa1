"""Trials of the promises, a module per subject."""
