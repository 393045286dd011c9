"""Execution of parts of a model.

`program` holds a graph in parts, `runner` runs some of its nodes, and `stream` runs all, in segments. Models are
changed beforehand: `foreign` removes unknown operators, `drawn` makes random draws of two models equal, `rounded` adds
roundings to narrower floats, and `steps` recognizes floats of a quantizer.
"""
