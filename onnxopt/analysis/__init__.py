"""Static analyses of a graph: types, shapes, constants, cost."""
