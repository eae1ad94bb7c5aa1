"""Answering hard samples: the Open Inference Protocol over a bounded queue."""
