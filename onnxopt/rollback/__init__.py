"""A result that differs from its original is made again without what was wrong."""

from onnxopt.rollback.attempts import optimize_or_roll_back

__all__ = ["optimize_or_roll_back"]
