"""Views of a server's state for people: HTML with pictures, CSV and JSON."""
