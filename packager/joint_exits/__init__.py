"""Exits that learn together with a copy of the blocks before them (docs/adr/0081-exits-on-a-copied-trunk.md)."""
