"""Growing a supernet around a traced model: blocks, exits, input sizes, paths by their MACs."""
