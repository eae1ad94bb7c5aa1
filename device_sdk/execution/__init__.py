"""Running: a plan or a stretch of a bundle on a runtime, and the self-test of what was loaded."""
