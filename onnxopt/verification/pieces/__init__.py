"""Two models compared between the values that they share.

`walk` decides which values agree, with `pairs` (which stands for which), `replay` (B on A's values), `views` (in what
shape), `doubts` (what will not agree), `paths` (how much is rounded), `noise`, `channels` and `precise` (does rounding
explain it: by last bits, by rows, and in float64, as `doubled` has it), `needs` (what is read later) and `outputs`
(what no cut settles). `outcome` is what it found. `sameness` tells what need not run, as files say that it is the same
by their `value_numbers`; `enclosing` is where a body is that is walked.
"""
