"""Captured programs as programs of other libraries: JAX and ONNX."""
