"""Rollouts: which devices get a version, stage by stage, and what their own signals say about it."""
