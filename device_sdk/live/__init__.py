"""Keeping a plan within its budget while the conditions of the device change (AdaptiveNet §5.3)."""
