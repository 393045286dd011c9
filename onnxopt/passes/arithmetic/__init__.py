"""Sums, products, bounds, logic and reductions."""
