"""The operator's page over a fleet with millions of log lines."""
