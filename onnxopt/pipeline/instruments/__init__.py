"""Instruments: timing, text and files between passes, checks, a journal of rewrites."""
