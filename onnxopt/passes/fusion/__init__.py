"""Formulas replaced by a single operator."""
