"""Thousands of generated files and calls that strangers may send, and the promises for each of them."""
