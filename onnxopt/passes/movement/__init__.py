"""Steps that move data, and compute nothing: fewer, or where they meet others."""
