"""Signatures: Ed25519 keys, key lists that rotate, releases that expire, trust in a bundle."""
