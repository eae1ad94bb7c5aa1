"""Inputs of a packaging run: model, weights, data, recipe."""
