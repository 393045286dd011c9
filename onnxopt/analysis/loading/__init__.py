"""Model loading in runtimes: inferred types and sizes, and rejected models."""
