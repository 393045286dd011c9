"""Numbers held against numbers.

`compare` goes through what two runs give out, and `metrics` describes it. `rounding` says how much of a difference may
be rounding, `shaken` moves the last bits to see, and `narrow` is for results in a narrower type. `draws` are random
numbers that are the same on every machine.
"""
