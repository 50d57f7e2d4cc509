"""The `onnxruntime` backend: a partition becomes an ONNX model, which ONNX Runtime executes."""
