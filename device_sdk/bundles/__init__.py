"""Bundles: their format, verified reading, and composing runnable models from their fragments."""
