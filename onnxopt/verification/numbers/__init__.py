"""Comparison of numbers.

`compare` compares the outputs of two runs, and `metrics` adds figures. `rounding` bounds the rounding error, `shaken`
perturbs last bits to measure rounding noise, and `narrow` handles results in narrower types. `draws` makes random
numbers, equal on every machine.
"""
