"""Files that are written atomically, rotated, or read without trust."""
