"""Coverage: parts not run by any case, and values that agree in every case regardless of their operands.

`gaps` finds values that may hide a difference, `decisions` those behind a constant decision. A `probe` runs the cone
of influence of a value (`cones`) on different numbers. `unseen` examines parts that may not run: `conditions` finds the
counterpart in the second model, and `bodies` runs a pair of bodies as functions of captured values. `traces` replaces
Ifs by taken branches in both models, and finds branches that always fail.
"""
