"""The folders that a run writes: locked, proven to be ours, resumed from, and exchanged in one step."""
