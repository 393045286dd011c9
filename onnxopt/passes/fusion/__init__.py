"""Formulas replaced by a single operator."""

from typing import Final

# Passes that could fold a factor of a formula into weights.
FOLDS: Final = ("conv-add-folding", "matmul-scale-folding", "scale-propagation")
