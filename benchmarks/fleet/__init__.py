"""Thousands of devices on several servers: rollouts that halt, and servers that are killed and upgraded meanwhile."""
