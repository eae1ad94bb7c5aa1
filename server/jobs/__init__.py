"""Packaging jobs: requested by clients, run in worker processes, published in the served folder."""
