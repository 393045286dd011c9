"""What is known of a graph without running it: types, shapes, constants, cost."""
