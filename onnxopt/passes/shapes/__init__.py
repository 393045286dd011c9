"""Integers that are computed from shapes."""
