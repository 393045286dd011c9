"""Parts of a model run on values, whatever these are compared with.

`program` is a graph in parts, `runner` runs some of its nodes, and `stream` all, one segment after another. What no
runtime runs, or all run otherwise, is put in the model first: `foreign` leaves out operators that nothing here knows,
`drawn` lets two models draw alike, `rounded` rounds what is held in narrower floats, and `steps` knows the
floats that a quantizer made.
"""
