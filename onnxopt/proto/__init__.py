"""ONNX messages: element types, the wire format, access through onnx's helpers, and shape inference."""
