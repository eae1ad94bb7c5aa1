"""From torch modules to ONNX fragments that were compared with them."""
