"""Families: several pretrained networks of one task in one bundle, stitched together (docs/adr/0070-families.md)."""
