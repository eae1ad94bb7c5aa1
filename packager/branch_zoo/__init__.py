"""Heterogeneous exits: a grid of branch structures, their training, survival and self-merging (MEEdge §3.2, §3.5)."""
