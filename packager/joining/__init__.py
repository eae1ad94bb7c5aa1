"""Blocks that lead between cut points of trained networks: maps, training, export, and their place in a bundle."""
