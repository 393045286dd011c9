"""Integers computed from shapes."""
