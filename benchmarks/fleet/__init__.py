"""Thousands of devices on several servers: rollouts that halt while servers are killed and upgraded."""
