"""Comparison of two models between shared values.

`walk` decides which values are cutpoints, with `pairs` (correspondence of values, and equality by `value_numbers`),
`replay` (B on A's values) and `paths` (rounding on paths). `noise` and `precise` test whether rounding explains a
difference: by last bits, and in float64. `outcome` holds the results.
"""
