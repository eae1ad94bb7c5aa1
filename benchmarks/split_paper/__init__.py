"""Auto-Split's simulated comparison (KDD 2021 §5.3): networks, baselines, and errors of real networks."""
