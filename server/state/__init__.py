"""State of a server: its database, the log lines in it, and the bundles of its folder."""
