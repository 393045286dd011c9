"""What no case shows: parts that did not run, and values that say nothing.

`unseen` goes through parts that may not run: `parts` are the nodes that hold them, `branches` what stands for a body in
the other model, `inside` walks them, `impossible` are those that no run comes to the end of, `indistinct` values that
only they tell apart. `blank` are values that say nothing whatever is fed, `undecided` decisions that are always the
same, `narrowed` integers that are never too large, `masked` differences that a step hides, and `bounds` those that
nothing reaches.
"""
