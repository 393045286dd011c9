"""Constant folding: nodes to compute ahead, and the cost."""
