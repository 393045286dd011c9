"""Coverage: parts not run by any case, and values that agree in every case regardless of their operands.

`gaps` finds values that may hide a difference. A `probe` runs the cone of influence of a value (`cones`) on different
numbers; `decisions` also tells from the files alone whether gaps are possible. `unseen` examines parts that may not
run: `conditions` finds the counterpart in the second model, and `bodies` runs a pair of bodies as functions of captured
values. `traces` replaces Ifs by taken branches in both models, and finds branches that always fail.
"""
