"""Bottlenecks: narrow cut points at which fewer bytes cross to a server (docs/adr/0079-bottlenecks.md)."""
