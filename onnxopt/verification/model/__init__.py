"""A model file as the judge reads it, on its own: what is wrong with the graph that passes change stays out of it.

`skeleton` is a file without its weights, `glance` what it says before it is parsed. `order` and `functions` tell what
nodes read, and what they call; `constants` what some of it holds, `operands` what operators do with it, `decisions`
which of them jump or choose, `random_nodes` which draw, `dependence` what feeds can change.
"""
