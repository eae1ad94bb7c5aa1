"""Exits that a plan keeps for deadlines, and what remains of a plan when memory shrinks."""
