"""The state of the fleet, kept up to date as log lines arrive."""
