"""Providers: plans over two providers at once, what is said when one fails, and what an NPU takes."""
