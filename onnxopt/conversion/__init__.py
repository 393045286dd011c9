"""What a user asks to be different about a model: opset, types, sizes, names. Passes keep a model equal."""
