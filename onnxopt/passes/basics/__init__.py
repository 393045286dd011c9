"""Basic passes: constants, equal and dead nodes, and nodes without effect."""
