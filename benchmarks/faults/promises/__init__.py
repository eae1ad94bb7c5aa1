"""How each promise is tried, by what it is about."""
