"""Exits: two plain structures, or a grid of them, with training, survival and self-merging (MEEdge §3.2, §3.5)."""
