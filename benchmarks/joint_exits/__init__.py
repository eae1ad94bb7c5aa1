"""Exits that learned with a copy of the network, against exits on the frozen one."""
