"""Splits a pretrained model into a chain of blocks: torch.export, cut points, reconstruction as torch modules."""
