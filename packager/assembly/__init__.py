"""From an exported supernet to a validated, verified bundle."""
