"""Export of torch modules to ONNX fragments, verified against torch."""
