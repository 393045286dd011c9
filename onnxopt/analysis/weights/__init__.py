"""What weights hold, what they take in, and what is lost there."""
