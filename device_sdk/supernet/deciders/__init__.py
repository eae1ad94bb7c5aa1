"""Rules that find hard samples by their logits. To add one: a file here, a name in ``Decider`` of ``supernet/plan``."""
