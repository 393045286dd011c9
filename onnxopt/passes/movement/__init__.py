"""Data movement: fewer steps, or steps moved to where they merge with others."""
