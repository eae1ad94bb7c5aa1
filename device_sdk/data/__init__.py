"""Images: data sets, sources, and preparing them as the model takes them."""
