"""The session: opening a bundle, running a plan, answering, and what a device remembers."""
