"""Blocks of the supernet besides the original ones: one module per kind of added block.

``originals`` describes the pretrained blocks; ``merged``, ``shrunk`` and ``identity`` each turn them into blocks of
their kind and into notes on failed ones. ``packager/supernet/expansion.py`` lists the kinds: a new one is
one module here and one line there.
"""
