"""What every optimizer does: constants, equal and dead nodes, and those that change nothing."""
