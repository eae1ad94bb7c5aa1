"""Splits of three real networks over a shaped link, measured against every baseline."""
