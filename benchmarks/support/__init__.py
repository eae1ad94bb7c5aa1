"""What several measurements share: bundles, peers, choices."""
