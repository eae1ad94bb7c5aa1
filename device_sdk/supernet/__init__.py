"""The one graph: cut points, blocks, paths and plans, and what they cost."""
