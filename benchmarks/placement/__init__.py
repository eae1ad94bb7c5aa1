"""Placement of exits: searches compared on a generated branch zoo."""
