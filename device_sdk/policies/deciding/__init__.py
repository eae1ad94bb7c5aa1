"""Deciders: how they are fitted, and the threshold from which a sample counts as hard. Pure."""
