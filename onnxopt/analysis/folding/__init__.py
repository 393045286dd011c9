"""What can be computed ahead, and what that takes."""
