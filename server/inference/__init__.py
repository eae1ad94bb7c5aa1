"""Inference for clients and devices: the Open Inference Protocol over a bounded queue."""
