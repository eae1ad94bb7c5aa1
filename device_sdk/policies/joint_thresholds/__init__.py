"""Limits of exits and of asking a server, optimised together (EE-HI, HI paper §5.2). Pure."""
