"""What a model file is: `skeleton` reads a file without its weights, `glance` a few fields of it.

`operators` is the judge's table of operators, `breakpoints` the numbers at which they change what they do. `dataflow`
walks a model once for each question: `ranges`, `dependence` and `decisions` here, others in `inputs`.
"""
