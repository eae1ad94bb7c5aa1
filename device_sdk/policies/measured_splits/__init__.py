"""Deciding on a split with what both sides measured: ``splitting`` proposes, this measures and chooses."""
