"""Element types: narrower ones, and indices in 64 bits."""
