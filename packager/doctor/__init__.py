"""What of a model can be adapted, examined before any training."""
