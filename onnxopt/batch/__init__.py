"""Optimization of many models: jobs for processes and machines, cached results, budgets."""

from onnxopt.batch.budget import Budget, parse_budget
from onnxopt.batch.job import Job, Outcome, worst_code
from onnxopt.batch.local import run_locally
from onnxopt.batch.places import destinations, refuse_shared
from onnxopt.batch.run import run

__all__ = [
    "Budget",
    "Job",
    "Outcome",
    "destinations",
    "parse_budget",
    "refuse_shared",
    "run",
    "run_locally",
    "worst_code",
]
