"""Comparison of two models between shared values.

`walk` decides which values are cutpoints, with `pairs` (correspondence of values), `replay` (B on A's values), `views`
(layout), `doubts` (likely disagreements) and `paths` (rounding on paths). `noise`, `channels` and `precise` test
whether rounding explains a difference: by last bits, by rows, and in float64 (`doubled`). `needs` tells which values
are read later, `outputs` which outputs remain open, and `outcome` holds the results. `sameness` finds equal values by
`value_numbers` without a run. `enclosing` locates a body.
"""
