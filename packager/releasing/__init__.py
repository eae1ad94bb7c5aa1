"""The operator's side of key lists and releases: making, signing and renewing them."""
