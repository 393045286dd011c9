"""Shapes, and integers computed from shapes, as symbolic expressions."""
