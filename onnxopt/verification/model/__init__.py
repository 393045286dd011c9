"""Reading and analysis of model files.

`skeleton` reads a file without weights, `glance` a few fields. `operators` is the verifier's table of operators,
`breakpoints` lists their breakpoints. `dataflow` is the framework for analyses: `ranges`, `dependence` and `decisions`
here, and more in `inputs`.
"""
