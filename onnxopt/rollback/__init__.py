"""Rollback: optimize again without the rewrites whose result differs from the original."""

from onnxopt.rollback.attempts import optimize_or_roll_back

__all__ = ["optimize_or_roll_back"]
