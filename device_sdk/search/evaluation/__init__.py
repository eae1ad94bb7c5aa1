"""Evaluating groups of subnets on private data with reuse of shared prefixes (AdaptiveNet §5.2)."""
