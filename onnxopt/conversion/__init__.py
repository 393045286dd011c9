"""Changes of a model on request: opset, types, sizes, names. Passes keep a model equal."""
