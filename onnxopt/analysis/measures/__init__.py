"""What a model costs to run."""
