"""Floating point operations of matrix products and convolutions."""
