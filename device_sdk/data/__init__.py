"""Images: data sets, sources and preprocessing."""
