"""``family``: adaptation within a family of networks, against the best rung of the ladder at each latency."""
