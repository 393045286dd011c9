"""The cost of running a model."""
