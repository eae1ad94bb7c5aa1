"""What the supernet is made of besides the original blocks: one module per kind of added block.

``originals`` describes the pretrained blocks; ``merged``, ``shrunk`` and ``identity`` each turn them into blocks of
their kind and into notes on what could not be made. ``packager/supernet/expansion.py`` lists the kinds: a new one is
one module here and one line there.
"""
