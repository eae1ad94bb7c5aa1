"""What added blocks and exits learn from, step by step, in one process or several, across interruptions."""
