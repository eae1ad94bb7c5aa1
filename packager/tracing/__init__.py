"""From a pretrained model to its chain of blocks: exported once, cut where one tensor carries all, rebuilt in torch."""
