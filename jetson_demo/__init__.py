"""The SDK on a Jetson, and unchanged on a laptop: see README.md and run_demo.py."""
