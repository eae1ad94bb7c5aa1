"""Choosing a base and a global network that work best together (Hybrid §2.2)."""
