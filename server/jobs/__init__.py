"""Packaging jobs: what clients ask to have packaged, done by worker processes and published in the served folder."""
