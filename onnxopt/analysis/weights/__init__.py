"""Weights: equal contents, folding of factors and terms, loss of precision."""
