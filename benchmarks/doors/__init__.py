"""Models from files against the modules that they were exported from."""
