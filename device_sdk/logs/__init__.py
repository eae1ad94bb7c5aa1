"""The adaptation log: its events, and their construction from results."""
