"""Images and targets: decoded on demand, batched, augmented."""
