"""Loaders of models: a file for each place that models come from."""
