"""Training of added blocks and exits, step by step, in one process or several, across interruptions."""
