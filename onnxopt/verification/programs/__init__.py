"""Execution of parts of a model.

`program` holds a graph in parts, `runner` runs some of its nodes, and `stream` runs all, in segments. Models are
changed beforehand: `foreign` removes unknown operators, `transforms` adds roundings and makes random draws equal.
"""
