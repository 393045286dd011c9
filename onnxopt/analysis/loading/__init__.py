"""What runtimes know when they load a model, and what they refuse then."""
