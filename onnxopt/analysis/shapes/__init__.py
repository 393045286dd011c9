"""Shapes, and the integers that are computed from shapes, as symbolic expressions."""
