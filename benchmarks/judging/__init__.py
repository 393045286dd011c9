"""How good the judge is: what `benchmarks/judge.py` runs, measures and prints."""
