"""Optimization of many models: jobs for processes and machines, cached results, budgets."""
