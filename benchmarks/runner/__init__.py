"""Runs measurements, stores their results, and reports them."""
