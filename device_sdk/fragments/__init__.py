"""ONNX fragments: read from untrusted bytes, bounded before they run, composed into graphs. Pure."""
