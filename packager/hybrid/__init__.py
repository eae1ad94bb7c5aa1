"""Hybrid training: a base for devices, a global model for a server, and the router between them, trained together."""
