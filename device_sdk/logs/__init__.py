"""The adaptation log: its lines, and how events become lines."""
