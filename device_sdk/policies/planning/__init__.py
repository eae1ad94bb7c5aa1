"""Planning: all plans that a device could run, judged by one cost function, and the best for a requirement."""
