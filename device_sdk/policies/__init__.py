"""The policies: each fills in one part of a plan (subnet, exits, thresholds, split), or chooses among plans."""
