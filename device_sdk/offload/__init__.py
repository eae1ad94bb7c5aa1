"""Inference at a server: the Open Inference Protocol, its client, and a circuit breaker."""
