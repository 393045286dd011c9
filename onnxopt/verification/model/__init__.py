"""Reading and analysis of model files.

`skeleton` reads a file without weights, through one of the `views`. `operators` is the verifier's table of operators,
`nodes` reads nodes in order, `dataflow` is the framework for analyses: `shapes`, `ranges`, `facts`, more in `inputs`.
"""
