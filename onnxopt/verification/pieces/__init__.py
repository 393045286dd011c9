"""Two models compared between the values that they share.

`look` is the way in: it opens both files and says what `walk` finds. `walk` decides which values agree, with `pairs`
(which stands for which), `replay` (B on A's values), `views`, `doubts` (what will not), `paths` (what is rounded),
`noise` and `inside` (bodies). `unseen` looks for parts that no case runs, `bounds` for bounds that none reaches,
`dead_ends` for values that say nothing, `halves` for what a runtime does not round; `sameness` tells what needs no run.
`program`, `runner` and `stream` run parts of a model, whatever is compared.
"""
